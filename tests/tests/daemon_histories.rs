//! A daemon's view across force-pushes to histories that have nothing in common, with restarts in between: what is open keeps its bytes, kinds
//! change, snapshots stay, and watchers are told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::git::Repo;
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

const DEADLINE: Duration = Duration::from_secs(30);

/// A history of its own: `thing` is a file, a directory or a link.
fn history(repo: &Repo, number: usize) -> Result<String> {
    let name = format!("refs/heads/h{number}");
    let mut import = Import::into(repo)?;
    import.commit(&name, &format!("history {number}"))?.file(b"told", format!("{number}\n"))?;
    match number % 3 {
        0 => import.file(b"thing", "file\n")?,
        1 => import.file(b"thing/inner", "inner\n")?,
        _ => import.entry(Mode::Symlink, b"thing", b"told")?,
    };
    import.finish()?;
    let id = repo.id(&name)?;
    repo.point("refs/heads/main", &id)?;
    Ok(id)
}

#[test]
fn histories_without_a_common_commit_follow_each_other_across_restarts() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let mut served = vec![history(&repo, 0)?];
    let server = HttpServer::plain(dir.path())?;
    let mut daemon = Daemon::held(&["--keep-snapshots", "20"])?;
    let target = daemon.target("t");
    daemon.publish("t", proto::ViewSpec { notify: "inotify".into(), ..view(&server.url("r.git")) })?;
    let watcher = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    watcher.add_watch(&target, AddWatchFlags::IN_CLOSE_WRITE)?;
    let told = || watcher.read_events().ok()?.iter().any(|e| e.name.as_deref() == Some("told".as_ref())).then_some(());
    let mut open = Vec::new();
    for number in 1..8 {
        ensure!(fs::read_to_string(target.join("told"))? == format!("{}\n", number - 1));
        open.push((format!("{}\n", number - 1), fs::File::open(target.join("told"))?));
        let new = history(&repo, number)?;
        if number % 2 == 0 {
            daemon.kill()?;
            daemon.restart()?;
        }
        daemon.client()?.pull(&target)?;
        served.push(new.clone());
        ensure!(xattr::get(&target, "user.git.commit")?.context("it says its commit")? == new.as_bytes());
        let thing = fs::symlink_metadata(target.join("thing"))?.file_type();
        ensure!((thing.is_file(), thing.is_dir(), thing.is_symlink()) == (number % 3 == 0, number % 3 == 1, number % 3 == 2), "{thing:?}");
        ensure!(number % 3 != 1 || fs::read_to_string(target.join("thing/inner"))? == "inner\n");
        wait_for("the event", DEADLINE, told)?;
        for (text, file) in &open {
            let mut all = vec![0; 16];
            let length = std::os::unix::fs::FileExt::read_at(file, &mut all, 0)?;
            ensure!(&all[..length] == text.as_bytes() && file.metadata()?.size() == length as u64);
        }
        for (number, id) in served.iter().enumerate() {
            let kept = target.join(".gitmount/commit").join(id);
            ensure!(fs::read_to_string(kept.join("told"))? == format!("{number}\n"), "the snapshot {number}");
            ensure!(fs::symlink_metadata(kept.join("thing"))?.is_dir() == (number % 3 == 1));
        }
    }
    daemon.client()?.unpublish(&target)
}
