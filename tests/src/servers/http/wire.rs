//! HTTP/1.1 as far as git clients speak it: requests with a length or in chunks, replies with a length.

use std::io::{ErrorKind, Read, Write};

use anyhow::{Context, Result, bail, ensure};
use bstr::ByteSlice;

/// No request of a git client to these tests is larger.
const LARGEST: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The next request, or `None` when the client closed the connection between two.
    pub(super) fn read(stream: &mut (impl Read + Write)) -> Result<Option<Self>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                Ok(_) if head.is_empty() => return Ok(None),
                Ok(_) => bail!("a request ended in its headers"),
                Err(e) if e.kind() == ErrorKind::UnexpectedEof && head.is_empty() => return Ok(None),
                Err(e) => return Err(e.into()),
            }
            ensure!(head.len() < 64 << 10, "a request has too long headers");
        }
        let text = std::str::from_utf8(&head)?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().context("a request line has a target")?.to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut request = Request { method, target, headers, body: Vec::new() };
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            stream.flush()?;
        }
        request.body = request.read_body(stream)?;
        Ok(Some(request))
    }

    fn read_body(&self, stream: &mut impl Read) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            loop {
                let size = usize::from_str_radix(line(stream)?.split(';').next().unwrap_or_default().trim(), 16)?;
                ensure!(body.len() + size < LARGEST, "a request is too large");
                let start = body.len();
                body.resize(start + size, 0);
                stream.read_exact(&mut body[start..])?;
                line(stream)?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        let length: usize = self.header("content-length").unwrap_or("0").parse()?;
        ensure!(length < LARGEST, "a request is too large");
        body.resize(length, 0);
        stream.read_exact(&mut body)?;
        Ok(body)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether this asks for objects.
    pub(super) fn is_fetch(&self) -> bool {
        self.method == "POST" && self.target.ends_with("/git-upload-pack") && !self.body.contains_str("command=ls-refs")
    }
}

fn line(stream: &mut impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        bytes.push(byte[0]);
        ensure!(bytes.len() < 1024, "a chunk has too long a header");
    }
    bytes.truncate(bytes.len() - 2);
    Ok(String::from_utf8(bytes)?)
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn error(status: u16, headers: &[(String, String)]) -> Self {
        Reply { status, headers: headers.to_vec(), body: format!("this is a reply with status {status}\n").into_bytes() }
    }

    /// Sends it whole. Says whether the connection can be used further.
    pub(super) fn send(&self, stream: &mut impl Write) -> Result<bool> {
        self.send_head(stream, self.body.len())?;
        stream.write_all(&self.body)?;
        stream.flush()?;
        Ok(true)
    }

    /// Sends the head of a reply whose body is `length` bytes.
    pub(super) fn send_head(&self, stream: &mut impl Write, length: usize) -> Result<()> {
        let mut head = format!("HTTP/1.1 {} {}\r\nContent-Length: {length}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        stream.flush()?;
        Ok(())
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        302 => "Found",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
