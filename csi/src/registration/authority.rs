//! Mends a kubelet's requests on their way in. Its plugin watcher sends the socket's path as `:authority`, which is no authority (RFC 9110,
//! section 7.2), and the HTTP/2 server here refuses such a request as malformed; the kubelet's other clients send `localhost`.
//!
//! `Mended` is a stream that reads as if `localhost` had been sent. Header blocks are decoded and written anew without the compression's
//! state, so that everything that comes later in them still means the same; all other frames pass unchanged (RFC 9113, section 4.1).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use loona_hpack::Decoder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// What a client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The largest frame that may come while nobody has allowed larger ones, and that is written.
const LARGEST: usize = 16_384;

/// Header blocks above this are not for this service.
const LONGEST: usize = 65_536;

/// A header block that is not whole yet.
struct Block {
    flags: u8,
    stream: [u8; 4],
    bytes: Vec<u8>,
}

/// Turns what a client sends into what it should have sent.
struct Mend {
    decoder: Decoder<'static>,
    pending: Vec<u8>,
    greeted: bool,
    block: Option<Block>,
}

impl Mend {
    fn new() -> Self {
        Mend { decoder: Decoder::new(), pending: vec![], greeted: false, block: None }
    }

    /// Takes what came, and appends to `out` what can be passed on.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        if !self.greeted {
            let known = self.pending.len().min(PREFACE.len());
            if self.pending[..known] != PREFACE[..known] {
                return Err(bad("it does not begin as HTTP/2 does"));
            }
            if known < PREFACE.len() {
                return Ok(());
            }
            self.greeted = true;
            out.extend(self.pending.drain(..known));
        }
        while let Some(head) = self.pending.first_chunk::<HEAD>().copied() {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if length > LARGEST {
                return Err(bad("a frame is too long"));
            }
            if self.pending.len() < HEAD + length {
                break;
            }
            let frame: Vec<u8> = self.pending.drain(..HEAD + length).collect();
            self.frame(head[3], head[4], [head[5], head[6], head[7], head[8]], &frame, out)?;
        }
        Ok(())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: [u8; 4], frame: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let payload = &frame[HEAD..];
        match (kind, &mut self.block) {
            (HEADERS, None) => self.block = Some(Block { flags, stream, bytes: fragment(flags, payload)?.to_vec() }),
            (CONTINUATION, Some(block)) if block.stream == stream => {
                block.bytes.extend_from_slice(payload);
                block.flags |= flags & END_HEADERS;
            }
            (_, Some(_)) | (CONTINUATION, None) => return Err(bad("a header block is interrupted")),
            (_, None) => {
                out.extend_from_slice(frame);
                return Ok(());
            }
        }
        if self.block.as_ref().is_some_and(|block| block.bytes.len() > LONGEST) {
            return Err(bad("a header block is too long"));
        }
        if let Some(block) = self.block.take_if(|block| block.flags & END_HEADERS != 0) {
            self.write(&block, out)?;
        }
        Ok(())
    }

    fn write(&mut self, block: &Block, out: &mut Vec<u8>) -> io::Result<()> {
        let headers = self.decoder.decode(&block.bytes).map_err(|_| bad("a header block cannot be decoded"))?;
        let mut bytes = vec![];
        for (name, value) in headers {
            let value = if name == b":authority" && !is_authority(&value) { b"localhost".to_vec() } else { value };
            // A literal that is not indexed, with a new name (RFC 7541, section 6.2.2).
            bytes.push(0);
            for text in [&name, &value] {
                integer(text.len(), &mut bytes);
                bytes.extend_from_slice(text);
            }
        }
        let mut rest = &*bytes;
        let (mut kind, mut flags) = (HEADERS, block.flags & END_STREAM);
        loop {
            let (now, later) = rest.split_at(rest.len().min(LARGEST));
            rest = later;
            flags |= if rest.is_empty() { END_HEADERS } else { 0 };
            let length = u32::try_from(now.len()).unwrap_or_default().to_be_bytes();
            out.extend_from_slice(&[length[1], length[2], length[3], kind, flags]);
            out.extend_from_slice(&block.stream);
            out.extend_from_slice(now);
            if rest.is_empty() {
                return Ok(());
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

/// Whether it can be a host with or without a port. The kubelet's path comes as it is or percent-encoded, by the version of its library.
fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte))
}

/// The header block's part in a HEADERS frame, without padding and priority.
fn fragment(flags: u8, payload: &[u8]) -> io::Result<&[u8]> {
    let short = || bad("a HEADERS frame is too short");
    let mut rest = payload;
    if flags & PADDED != 0 {
        let (padding, tail) = rest.split_first().ok_or_else(short)?;
        rest = tail.get(..tail.len().checked_sub(usize::from(*padding)).ok_or_else(short)?).ok_or_else(short)?;
    }
    if flags & PRIORITY != 0 {
        rest = rest.get(5..).ok_or_else(short)?;
    }
    Ok(rest)
}

/// An integer with a prefix of seven bits (RFC 7541, section 5.1).
fn integer(mut value: usize, out: &mut Vec<u8>) {
    if value < 127 {
        return out.push(value.to_le_bytes()[0]);
    }
    out.push(127);
    value -= 127;
    while value >= 128 {
        out.push((value % 128).to_le_bytes()[0] | 128);
        value /= 128;
    }
    out.push(value.to_le_bytes()[0]);
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A connection that reads as if the client had sent a right `:authority`.
pub(super) struct Mended<S> {
    stream: S,
    mend: Mend,
    ready: Vec<u8>,
}

impl<S> std::fmt::Debug for Mended<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mended")
    }
}

impl<S> Mended<S> {
    /// Mends a connection that has just been accepted.
    pub(super) fn new(stream: S) -> Self {
        Mended { stream, mend: Mend::new(), ready: vec![] }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut bytes = [0; 4096];
            let mut came = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut came))?;
            if came.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.mend.feed(came.filled(), &mut this.ready)?;
        }
        let now = this.ready.len().min(to.remaining());
        to.put_slice(&this.ready[..now]);
        this.ready.drain(..now);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Mended<tokio::net::UnixStream> {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loona_hpack::Encoder;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[length[1], length[2], length[3], kind, flags, 0, 0, 0, stream][..], payload].concat()
    }

    type Headers = Vec<(Vec<u8>, Vec<u8>)>;

    /// The headers in each HEADERS frame (with its continuations), and the other frames.
    fn read(mut bytes: &[u8]) -> (Vec<Headers>, Vec<Vec<u8>>) {
        bytes = bytes.strip_prefix(PREFACE).unwrap();
        let (mut decoder, mut block) = (Decoder::new(), vec![]);
        let (mut headers, mut others) = (vec![], vec![]);
        while !bytes.is_empty() {
            let length = usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
            let (now, later) = bytes.split_at(HEAD + length);
            bytes = later;
            if [HEADERS, CONTINUATION].contains(&now[3]) {
                block.extend_from_slice(&now[HEAD..]);
                if now[4] & END_HEADERS != 0 {
                    headers.push(decoder.decode(&std::mem::take(&mut block)).unwrap());
                }
            } else {
                others.push(now.to_vec());
            }
        }
        (headers, others)
    }

    const PATH: &[u8] = b"/var/lib/kubelet/plugins_registry/git.liken.sh-reg.sock";

    /// Two requests whose second refers to the first one's headers, in frames of every form.
    fn requests() -> Vec<u8> {
        let mut encoder = Encoder::new();
        let mut block =
            |path: &[u8]| encoder.encode([(&b":method"[..], &b"POST"[..]), (b":authority", PATH), (b":path", path), (b"x", &[b'y'; 300])]);
        let (first, second) = (block(b"/a"), block(b"/b"));
        let (start, end) = second.split_at(3);
        let padded = [&[2, 0, 0, 0, 0, 7][..], start, &[0, 0]].concat();
        [
            PREFACE.to_vec(),
            frame(4, 0, 0, &[]),
            frame(HEADERS, END_HEADERS, 1, &first),
            frame(0, END_STREAM, 1, b"data"),
            frame(HEADERS, PADDED | PRIORITY | END_STREAM, 3, &padded),
            frame(CONTINUATION, END_HEADERS, 3, end),
            frame(8, 0, 0, &[0, 0, 1, 0]),
        ]
        .concat()
    }

    #[test]
    fn a_path_as_authority_becomes_localhost_and_nothing_else_changes() {
        for step in [1, 7, 1000] {
            let (mut mend, mut out) = (Mend::new(), vec![]);
            for bytes in requests().chunks(step) {
                mend.feed(bytes, &mut out).unwrap();
            }
            let (headers, others) = read(&out);
            let value = |at: usize, name: &[u8]| headers[at].iter().find(|(n, _)| n == name).unwrap().1.clone();
            assert_eq!(headers.len(), 2);
            for (at, path) in [(0, b"/a"), (1, b"/b")] {
                assert_eq!(value(at, b":authority"), b"localhost");
                assert_eq!(
                    (value(at, b":path"), value(at, b":method"), value(at, b"x")),
                    (path.to_vec(), b"POST".to_vec(), vec![b'y'; 300])
                );
            }
            assert_eq!(others, [frame(4, 0, 0, &[]), frame(0, END_STREAM, 1, b"data"), frame(8, 0, 0, &[0, 0, 1, 0])]);
        }
    }

    #[test]
    fn an_authority_that_is_one_stays() {
        for (sent, read_as) in [("localhost:80", "localhost:80"), ("[::1]:80", "[::1]:80"), ("%2Fvar%2Flib%2Fa.sock", "localhost")] {
            let block = Encoder::new().encode([(&b":authority"[..], sent.as_bytes())]);
            let mut out = vec![];
            Mend::new().feed(&[PREFACE, &frame(HEADERS, END_HEADERS, 1, &block)].concat(), &mut out).unwrap();
            assert_eq!(read(&out).0[0][0].1, read_as.as_bytes());
        }
    }

    #[test]
    fn a_block_above_one_frame_is_written_in_several() {
        let mut encoder = Encoder::new();
        let block = encoder.encode([(&b"a"[..], &[b'b'; 40_000][..]), (b":authority", PATH)]);
        let pieces: Vec<&[u8]> = block.chunks(LARGEST).collect();
        let mut bytes = PREFACE.to_vec();
        for (at, piece) in pieces.iter().enumerate() {
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            bytes.extend(frame(kind, if at + 1 == pieces.len() { END_HEADERS } else { 0 }, 1, piece));
        }
        let mut out = vec![];
        Mend::new().feed(&bytes, &mut out).unwrap();
        let headers = &read(&out).0[0];
        assert_eq!((headers[0].1.len(), headers[1].1.as_slice()), (40_000, &b"localhost"[..]));
    }

    #[test]
    fn what_is_no_http_2_ends_the_connection() {
        let long = [PREFACE, &[0xff; 9]].concat();
        let open = [PREFACE.to_vec(), frame(HEADERS, 0, 1, b""), frame(0, 0, 1, b"")].concat();
        let short = [PREFACE.to_vec(), frame(HEADERS, PADDED | END_HEADERS, 1, &[9, 0])].concat();
        let nonsense = [PREFACE.to_vec(), frame(HEADERS, END_HEADERS, 1, &[0xff; 20])].concat();
        let alone = [PREFACE.to_vec(), frame(CONTINUATION, END_HEADERS, 1, b"")].concat();
        for bytes in [b"GET / HTTP/1.1\r\n".to_vec(), long, open, short, nonsense, alone] {
            assert!(Mend::new().feed(&bytes, &mut vec![]).is_err(), "{bytes:?}");
        }
    }
}
