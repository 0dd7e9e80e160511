//! `gitmount status`: a table for people, JSON for scripts. Control characters in names never reach the terminal.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gitmount_proto::fsd::v1 as proto;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::args::{OutputArg, StatusArgs};
use super::exit::{CliError, Result};
use super::mounts::{self, Entry};
use super::through;

/// One mount, as `--output json` shows it. Names that are not UTF-8 are shown with replacement characters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    url: String,
    /// This and the next two are empty for a dead mount: nobody knows them any more.
    #[serde(rename = "ref")]
    reference: String,
    path: String,
    commit: String,
    state: &'static str,
    /// RFC 3339, UTC.
    last_attempt: Option<String>,
    last_success: Option<String>,
    error: Option<String>,
    mounts: Vec<String>,
    /// For which pods they are, in the same order; nothing is known of a pod for a mount that was made by hand.
    pods: Vec<Option<Pod>>,
    requests: BTreeMap<String, u64>,
    pid: Option<u32>,
    store: Option<String>,
    #[serde(skip)]
    success: Option<SystemTime>,
}

/// Whose volume a mount is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Pod {
    namespace: String,
    name: String,
    /// The volume's name in the pod, or of the PersistentVolume.
    volume: String,
    claim: Option<String>,
}

impl Pod {
    fn of(volume: proto::Volume) -> Option<Self> {
        let proto::Volume { namespace, pod: name, spec_name: volume, claim, .. } = volume;
        (!name.is_empty()).then(|| Pod { namespace, name, volume, claim: Some(claim).filter(|claim| !claim.is_empty()) })
    }
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<()> {
    let mut entries = match &args.socket.socket {
        Some(socket) => through::status(socket)?,
        None => mounts::all()?,
    };
    if let Some(dir) = &args.dir {
        let target = if args.socket.socket.is_some() { through::target(dir)? } else { mounts::target(dir)? };
        entries.retain(|e| is_at(e, &target));
        if entries.is_empty() {
            return Err(CliError::not_found(format!("{} is no gitmount mount: `gitmount status` lists those there are", target.display())));
        }
    }
    let mut rows: Vec<Row> = entries.into_iter().map(row).collect();
    rows.sort_by(|a, b| a.mounts.cmp(&b.mounts));
    match args.output {
        OutputArg::Json => {
            let text = serde_json::to_string_pretty(&rows).expect("rows are made of strings and numbers");
            println!("{text}");
        }
        OutputArg::Table => print!("{}", table(&rows, SystemTime::now())),
    }
    Ok(())
}

fn is_at(entry: &Entry, target: &Path) -> bool {
    match entry {
        Entry::Live { view, .. } => view.mounts.iter().any(|m| m.as_slice() == target.as_os_str().as_encoded_bytes()),
        Entry::Dead(mount) => mount.target == target,
    }
}

fn row(entry: Entry) -> Row {
    let (pid, view) = match entry {
        Entry::Dead(mount) => {
            return Row {
                url: mount.source,
                state: "dead",
                error: Some("the process of this mount died: unmount it and mount it again".into()),
                mounts: vec![mount.target.to_string_lossy().into_owned()],
                ..Row::default()
            };
        }
        Entry::Live { pid, view } => (pid, *view),
    };
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let time = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
    let printed = |ms: u64| humantime::format_rfc3339_millis(time(ms)).to_string();
    Row {
        state: state(view.state()),
        last_attempt: view.last_attempt_ms.map(printed),
        last_success: view.last_success_ms.map(printed),
        success: view.last_success_ms.map(time),
        error: Some(view.error).filter(|e| !e.is_empty()),
        mounts: view.mounts.iter().map(|m| lossy(m)).collect(),
        pods: view.volumes.into_iter().map(Pod::of).collect(),
        requests: view.requests.into_iter().collect(),
        pid: Some(pid),
        store: Some(lossy(&view.store)).filter(|s| !s.is_empty()),
        url: view.url,
        reference: view.r#ref,
        path: lossy(&view.path),
        commit: view.commit,
    }
}

pub(super) fn state(state: proto::State) -> &'static str {
    match state {
        proto::State::Ok => "ok",
        proto::State::Stale => "stale",
        proto::State::Failing => "failing",
        proto::State::Gone => "gone",
        proto::State::Detached => "detached",
        proto::State::Waiting => "waiting",
        proto::State::Unmounted => "unmounted",
        proto::State::Covered => "covered",
        proto::State::Unspecified => "unknown",
    }
}

/// Where a view is: a kubelet's path says little, the pod says all.
fn places(row: &Row) -> Vec<String> {
    let pods = row.pods.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    let place = |(mount, pod): (&String, Option<&Pod>)| match pod {
        Some(Pod { namespace, name, volume, .. }) => format!("{namespace}/{name} {volume}"),
        None => mount.clone(),
    };
    row.mounts.iter().zip(pods).map(place).collect()
}

/// The table, with each error on a line of its own below its mount.
fn table(rows: &[Row], now: SystemTime) -> String {
    if rows.is_empty() {
        return "nothing is mounted\n".into();
    }
    let head = ["MOUNT", "STATE", "REF", "COMMIT", "PULLED", "URL"].map(String::from);
    let mut lines = vec![(head, None)];
    for row in rows {
        let reference = match (row.reference.as_str(), row.path.as_str()) {
            ("", _) => "-".to_owned(),
            (reference, "") => reference.to_owned(),
            (reference, path) => format!("{reference}:{path}"),
        };
        let commit = if row.commit.is_empty() { "-" } else { row.commit.get(..12).unwrap_or(&row.commit) };
        let cells = [
            printable(&places(row).join(", ")),
            row.state.to_owned(),
            printable(&reference),
            commit.to_owned(),
            row.success.map_or_else(|| "-".to_owned(), |at| age(at, now)),
            printable(&row.url),
        ];
        lines.push((cells, row.error.as_deref().map(printable)));
    }
    let mut widths = [0; 6];
    for (cells, _) in &lines {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.width());
        }
    }
    let mut out = String::new();
    for (cells, error) in &lines {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(cells) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
        if let Some(error) = error {
            out.push_str(&format!("  {error}\n"));
        }
    }
    out
}

pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// How long ago, in the biggest unit that fits.
fn age(at: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(at).map_or(0, |d| d.as_secs());
    let (count, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3600 => (seconds / 60, "m"),
        3600..86_400 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    format!("{count}{unit} ago")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(pid: u32, view: proto::View) -> Entry {
        Entry::Live { pid, view: Box::new(view) }
    }

    fn view() -> proto::View {
        proto::View {
            url: "https://example.com/a.git".into(),
            r#ref: "main".into(),
            path: b"docs".to_vec(),
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            state: proto::State::Failing.into(),
            last_attempt_ms: Some(1_700_000_060_000),
            last_success_ms: Some(1_700_000_000_123),
            error: "host \"example.com\" does not answer".into(),
            mounts: vec![b"/mnt/a".to_vec()],
            store: b"/cache".to_vec(),
            requests: [("lookup".to_owned(), 3)].into(),
            ..Default::default()
        }
    }

    #[test]
    fn json_has_every_promised_field() {
        let json = serde_json::to_value(row(live(7, view()))).unwrap();
        let expected = serde_json::json!({
            "url": "https://example.com/a.git", "ref": "main", "path": "docs", "commit": "0123456789abcdef0123456789abcdef01234567",
            "state": "failing", "last_attempt": "2023-11-14T22:14:20.000Z", "last_success": "2023-11-14T22:13:20.123Z",
            "error": "host \"example.com\" does not answer", "mounts": ["/mnt/a"], "pods": [],
            "requests": {"lookup": 3}, "pid": 7, "store": "/cache",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn json_says_null_for_what_there_is_not() {
        let view = proto::View { error: String::new(), store: vec![], last_success_ms: None, ..view() };
        let json = serde_json::to_value(row(live(7, view))).unwrap();
        assert!(json["error"].is_null() && json["store"].is_null() && json["last_success"].is_null(), "{json}");
    }

    #[test]
    fn columns_line_up_whatever_the_width_of_a_name() {
        let now = UNIX_EPOCH + Duration::from_millis(1_700_000_300_123);
        let mut ok = view();
        (ok.state, ok.error, ok.path) = (proto::State::Ok.into(), String::new(), vec![]);
        ok.mounts = vec!["/mnt/日本".into()];
        let rows = [row(live(7, ok)), row(live(8, view()))];
        assert_eq!(
            table(&rows, now),
            "MOUNT      STATE    REF        COMMIT        PULLED  URL\n\
             /mnt/日本  ok       main       0123456789ab  5m ago  https://example.com/a.git\n\
             /mnt/a     failing  main:docs  0123456789ab  5m ago  https://example.com/a.git\n\
             \x20 host \"example.com\" does not answer\n"
        );
    }

    #[test]
    fn a_pod_is_shown_in_place_of_its_path() {
        let volume = proto::Volume {
            namespace: "sites".into(),
            pod: "reader".into(),
            spec_name: "franchises".into(),
            claim: "data".into(),
            ..Default::default()
        };
        let (mounts, volumes) = (vec![b"/pods/1/mount".to_vec(), b"/mnt/a".to_vec()], vec![volume, proto::Volume::default()]);
        let row = row(live(7, proto::View { mounts, volumes, ..view() }));
        let json = serde_json::to_value(&row).unwrap();
        let pod = serde_json::json!({"namespace": "sites", "name": "reader", "volume": "franchises", "claim": "data"});
        assert_eq!(json["pods"], serde_json::json!([pod, null]));
        let text = table(&[row], SystemTime::now());
        assert!(text.contains("sites/reader franchises, /mnt/a ") && !text.contains("/pods/"), "{text}");
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let view = proto::View { mounts: vec![b"/mnt/\x1b[2J\n\xff".to_vec()], ..view() };
        let text = table(&[row(live(7, view))], SystemTime::now());
        assert!(text.contains("/mnt/?[2J?\u{fffd}"), "{text}");
    }

    #[test]
    fn an_empty_table_says_so_and_a_dead_mount_says_what_to_do() {
        assert_eq!(table(&[], SystemTime::now()), "nothing is mounted\n");
        let mount = super::super::mount_table::example("/mnt/a", "https://example.com/a.git");
        let text = table(&[row(Entry::Dead(mount))], SystemTime::now());
        assert!(text.contains("dead") && text.contains("unmount it"), "{text}");
    }

    #[test]
    fn ages_are_short() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (before, text) in [(0, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7_199, "1h ago"), (86_400 * 3, "3d ago")] {
            assert_eq!(age(now - Duration::from_secs(before), now), text);
        }
        assert_eq!(age(now + Duration::from_secs(5), now), "0s ago", "a clock that was set back");
    }
}
