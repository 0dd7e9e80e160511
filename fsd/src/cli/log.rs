//! `gitmount log`: the last events of a mount, a line each.

use std::time::{Duration, UNIX_EPOCH};

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::event::Kind;
use serde::Serialize;

use super::args::{LogArgs, OutputArg};
use super::exit::Result;
use super::{mounts, status, through};

/// One event, as `--output json` shows it.
#[derive(Debug, Serialize)]
struct Line {
    /// RFC 3339, UTC.
    time: String,
    kind: &'static str,
    message: String,
    commit: String,
}

/// Runs the command.
pub fn run(args: &LogArgs) -> Result<()> {
    let events = match &args.socket.socket {
        Some(socket) => through::log(socket, &args.dir)?,
        None => {
            let target = mounts::target(&args.dir)?;
            mounts::live(&target)?.log(&target)?
        }
    };
    let lines: Vec<Line> = events.into_iter().map(line).collect();
    match args.output {
        OutputArg::Json => {
            let text = serde_json::to_string_pretty(&lines).expect("lines are made of strings");
            println!("{text}");
        }
        OutputArg::Table => {
            for Line { time, kind, message, .. } in lines {
                println!("{time}  {kind:<12}  {}", status::printable(&message));
            }
        }
    }
    Ok(())
}

fn line(event: proto::Event) -> Line {
    let time = UNIX_EPOCH + Duration::from_millis(event.time_ms);
    let kind = match event.kind() {
        Kind::Unspecified | Kind::Watching => "unknown",
        Kind::Published => "published",
        Kind::Unpublished => "unpublished",
        Kind::Switched => "switched",
        Kind::FetchFailed => "failed",
        Kind::FetchRecovered => "recovered",
        Kind::Stale => "stale",
        Kind::Replaced => "replaced",
        Kind::Notice => "notice",
        Kind::Credential => "credential",
    };
    Line { time: humantime::format_rfc3339_millis(time).to_string(), kind, message: event.message, commit: event.commit }
}
