//! A host that talks without end: of what it can, of refs, of how far it is. The fetch ends, and what was said is not kept.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::credential::Auth;
use gitmount_store::fetch::{FetchRequest, NoProgress};
use gitmount_store::refspec::RefSpec;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};

const IDLE: Duration = Duration::from_millis(200);
/// Far more than the limits add up to: only a fetch that goes on for ever takes this long.
const FOR_EVER: Duration = Duration::from_secs(120);
const ID: &str = "0123456789abcdef0123456789abcdef01234567";

fn line(text: &str) -> Vec<u8> {
    format!("{:04x}{text}", text.len() + 4).into_bytes()
}

/// Reads up to a flush; false at the end of the connection.
fn request(mut stream: &TcpStream) -> bool {
    let mut bytes = vec![];
    let mut byte = [0];
    while !bytes.ends_with(b"0000") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return false,
        }
    }
    true
}

fn greeting(mut stream: &TcpStream, end: bool) -> std::io::Result<()> {
    // What a client of git:// begins with is one line without a flush.
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let left = usize::from_str_radix(std::str::from_utf8(&length).unwrap_or_default(), 16).unwrap_or(4) - 4;
    stream.read_exact(&mut vec![0; left])?;
    let mut lines = ["version 2\n", "agent=endless\n", "ls-refs=unborn\n", "fetch=shallow\n"].map(line).concat();
    if end {
        lines.extend(b"0000");
    }
    stream.write_all(&lines)
}

/// Serves one connection, and says `piece` again and again once `talk` has said how it begins.
fn endless(piece: Vec<u8>, pause: Duration, begin: impl Fn(&TcpStream) -> std::io::Result<()> + Send + 'static) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        if begin(&stream).is_ok() {
            while stream.write_all(&piece).is_ok() {
                std::thread::sleep(pause);
            }
        }
    });
    Ok(port)
}

fn ends(port: u16, fault: Fault, words: &str) -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let mut options = StoreOptions::new(dir.path());
    options.idle = IDLE;
    let url = RepoUrl::parse(&format!("git://127.0.0.1:{port}/r.git"), &UrlPolicy::default())?;
    let repository = Store::open(options)?.repository(&url)?;
    let request = FetchRequest { spec: RefSpec::parse("main")?, depth: 1, auth: Auth::default() };
    let started = Instant::now();
    let error = repository.fetch(&request, &NoProgress, &Arc::new(AtomicBool::new(false))).err().context("it cannot work")?;
    ensure!(started.elapsed() < FOR_EVER, "it took {:?}", started.elapsed());
    ensure!(error.fault() == fault && error.to_string().contains(words), "{:?}: {error}", error.fault());
    Ok(())
}

#[test]
fn capabilities_without_end() -> Result<()> {
    let piece = line(&format!("x-{}\n", "y".repeat(60_000)));
    ends(endless(piece, Duration::ZERO, |stream| greeting(stream, false))?, Fault::Corrupt, "128 MiB of refs")
}

#[test]
fn refs_without_end() -> Result<()> {
    let piece = line(&format!("{ID} refs/heads/main{}\n", "y".repeat(60_000)));
    let begin = |stream: &TcpStream| {
        greeting(stream, true)?;
        request(stream);
        Ok(())
    };
    ends(endless(piece, Duration::ZERO, begin)?, Fault::Corrupt, "128 MiB of refs")
}

/// Up to where the objects would come.
fn asked_for_objects(mut stream: &TcpStream) -> std::io::Result<()> {
    greeting(stream, true)?;
    request(stream);
    stream.write_all(&[line(&format!("{ID} HEAD\n")), line(&format!("{ID} refs/heads/main\n")), b"0000".to_vec()].concat())?;
    request(stream);
    stream.write_all(&line("packfile\n"))
}

#[test]
fn progress_without_end() -> Result<()> {
    let slow = endless(line("\u{2}Counting objects: 1\r"), Duration::from_millis(50), asked_for_objects)?;
    ends(slow, Fault::Unreachable, "did not send any objects within 6 s")?;
    let fast = endless(line(&format!("\u{2}{}\r", "y".repeat(60_000))), Duration::ZERO, asked_for_objects)?;
    ends(fast, Fault::Corrupt, "128 MiB")
}
