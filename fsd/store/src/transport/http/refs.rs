//! `ls-refs` in one request: what protocol V2 allows once it is known that the host speaks it. Source: git's
//! `Documentation/gitprotocol-v2.txt`.

use super::super::pkt::{self, Packet};
use super::super::wire::Wire;
use super::super::{AGENT, NetOptions, RemoteRef, Result, StoreError};
use super::memory;
use super::session::{Request, Session};
use crate::credential::Auth;
use crate::error::Fault;
use crate::url::RepoUrl;

/// The longest list of refs that is read.
const MAX_LIST: usize = 64 << 20;

/// See [`super::super::ls_refs_once`].
pub(in super::super) fn ls_refs_once(
    url: &RepoUrl,
    auth: &Auth,
    net: &NetOptions,
    wire: Wire,
    prefixes: &[String],
) -> Result<Option<Vec<RemoteRef>>> {
    let known =
        memory::recall(&wire.url).filter(|known| url.allows_host(known.base.host_str().unwrap_or_default().trim_matches(['[', ']'])));
    let Some(known) = known else { return Ok(None) };
    let session = Session::new(url, auth, net, wire, Some(known.base))?;
    let headers = [
        ("Git-Protocol", "version=2"),
        ("Content-Type", "application/x-git-upload-pack-request"),
        ("Accept", "application/x-git-upload-pack-result"),
    ];
    let request = Request {
        post: true,
        tail: "git-upload-pack".into(),
        headers: headers.map(|(name, value)| (name.into(), value.into())).into(),
        body: command(known.object_format.as_deref(), prefixes),
    };
    match session.send(request).and_then(|response| receive(&session, response)) {
        Ok(Some(refs)) => Ok(Some(refs)),
        // Not what was expected: a whole handshake tells more.
        Ok(None) => {
            memory::forget(&session.wire.url);
            Ok(None)
        }
        Err(error)
            if matches!(error.fault(), Fault::NotFound | Fault::Corrupt) || error.fault() == Fault::Refused && session.is_redirected() =>
        {
            memory::forget(&session.wire.url);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn command(object_format: Option<&str>, prefixes: &[String]) -> Vec<u8> {
    let mut out = vec![];
    pkt::put(&mut out, b"command=ls-refs\n");
    pkt::put(&mut out, format!("agent={AGENT}\n").as_bytes());
    if let Some(format) = object_format {
        pkt::put(&mut out, format!("object-format={format}\n").as_bytes());
    }
    pkt::put_delimiter(&mut out);
    pkt::put(&mut out, b"peel\n");
    pkt::put(&mut out, b"symrefs\n");
    for prefix in prefixes {
        pkt::put(&mut out, format!("ref-prefix {prefix}\n").as_bytes());
    }
    pkt::put_flush(&mut out);
    out
}

/// The whole answer; `None` when it is no list of refs.
fn receive(session: &Session, mut response: reqwest::Response) -> Result<Option<Vec<RemoteRef>>> {
    let mut body = vec![];
    while let Some(chunk) = session.chunk(&mut response)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_LIST {
            let message = format!("host {} lists more than {} MiB of refs", session.wire.host, MAX_LIST >> 20);
            return Err(StoreError::new(Fault::Corrupt, message));
        }
    }
    Ok(parse(&body))
}

fn parse(mut body: &[u8]) -> Option<Vec<RemoteRef>> {
    let mut refs = vec![];
    loop {
        match pkt::next(&mut body)? {
            Packet::Line(line) => refs.push(parse_ref(line)?),
            Packet::Flush => return body.is_empty().then_some(refs),
            Packet::Delimiter => return None,
        }
    }
}

/// `<id> <name>[ symref-target:<name>][ peeled:<id>]`
fn parse_ref(line: &[u8]) -> Option<RemoteRef> {
    let mut fields = std::str::from_utf8(line).ok()?.split(' ');
    let id = gix::ObjectId::from_hex(fields.next()?.as_bytes()).ok()?;
    let name = fields.next().filter(|n| !n.is_empty())?.to_owned();
    let mut found = RemoteRef { name, id, peeled: None, symref: None };
    for field in fields {
        if let Some(target) = field.strip_prefix("symref-target:") {
            found.symref = Some(target.to_owned());
        } else if let Some(id) = field.strip_prefix("peeled:") {
            found.peeled = Some(gix::ObjectId::from_hex(id.as_bytes()).ok()?);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789abcdef0123456789abcdef01234567";
    const B: &str = "89abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_command_is_as_the_protocol_wants_it() {
        let out = command(Some("sha1"), &["HEAD".into(), "refs/heads/main".into()]);
        let mut rest = out.as_slice();
        let packets: Vec<_> = std::iter::from_fn(|| pkt::next(&mut rest)).collect();
        let agent = format!("agent={AGENT}");
        let expected = [
            Packet::Line(b"command=ls-refs"),
            Packet::Line(agent.as_bytes()),
            Packet::Line(b"object-format=sha1"),
            Packet::Delimiter,
            Packet::Line(b"peel"),
            Packet::Line(b"symrefs"),
            Packet::Line(b"ref-prefix HEAD"),
            Packet::Line(b"ref-prefix refs/heads/main"),
            Packet::Flush,
        ];
        assert_eq!(packets, expected);
    }

    fn list(lines: &[String]) -> Vec<u8> {
        let mut out = vec![];
        lines.iter().for_each(|line| pkt::put(&mut out, line.as_bytes()));
        pkt::put_flush(&mut out);
        out
    }

    #[test]
    fn refs_are_read_with_what_they_point_at() {
        let body = list(&[
            format!("{A} HEAD symref-target:refs/heads/main\n"),
            format!("{A} refs/heads/main\n"),
            format!("{B} refs/tags/v1 peeled:{A}\n"),
        ]);
        let id = |hex: &str| gix::ObjectId::from_hex(hex.as_bytes()).unwrap();
        let plain = |name: &str, hex| RemoteRef { name: name.into(), id: id(hex), peeled: None, symref: None };
        let expected = vec![
            RemoteRef { symref: Some("refs/heads/main".into()), ..plain("HEAD", A) },
            plain("refs/heads/main", A),
            RemoteRef { peeled: Some(id(A)), ..plain("refs/tags/v1", B) },
        ];
        assert_eq!(parse(&body), Some(expected));
        assert_eq!(parse(&list(&[])), Some(vec![]));
    }

    #[test]
    fn anything_else_is_no_list() {
        let whole = list(&[format!("{A} refs/heads/main\n")]);
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "cut at {end}");
        }
        for line in ["ERR access denied", "unborn HEAD symref-target:refs/heads/main", A, &format!("{A} "), &format!("{A} x peeled:1")] {
            assert_eq!(parse(&list(&[line.to_owned()])), None, "{line}");
        }
        assert_eq!(parse(&[whole.clone(), whole].concat()), None);
        assert_eq!(parse(b"<html>"), None);
    }
}
