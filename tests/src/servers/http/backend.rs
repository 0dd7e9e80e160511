//! One request through `git http-backend`, as a CGI program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bstr::ByteSlice;

use super::wire::{Reply, Request};
use crate::git::git;
use crate::run::{DEADLINE, run_with};

pub(super) fn program() -> PathBuf {
    Path::new("/usr/lib/git-core/git-http-backend").to_owned()
}

pub(super) fn answer(root: &Path, request: &Request, only_v0: bool) -> Result<Reply> {
    // A client that takes this server for a proxy sends a whole URL.
    let target = match request.target.strip_prefix("http://") {
        Some(rest) => &rest[rest.find('/').unwrap_or(rest.len())..],
        None => &request.target,
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut command = git();
    command
        .args(["-c", "uploadpack.allowFilter=true", "http-backend"])
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", request.header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .env("REMOTE_ADDR", "127.0.0.1");
    if let Some(encoding) = request.header("content-encoding") {
        command.env("HTTP_CONTENT_ENCODING", encoding);
    }
    if let Some(protocol) = request.header("git-protocol").filter(|_| !only_v0) {
        command.env("HTTP_GIT_PROTOCOL", protocol).env("GIT_PROTOCOL", protocol);
    }
    let output = run_with(&mut command, &request.body, DEADLINE)?.stdout;
    let (head, body) = output.split_once_str("\r\n\r\n").context("git http-backend printed no headers")?;
    let mut reply = Reply { status: 200, headers: Vec::new(), body: body.to_vec() };
    for line in head.to_str()?.split("\r\n") {
        let (name, value) = line.split_once(':').context("git http-backend printed a line that is no header")?;
        if name.eq_ignore_ascii_case("status") {
            reply.status = value.split_whitespace().next().unwrap_or_default().parse()?;
        } else {
            reply.headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }
    Ok(reply)
}
