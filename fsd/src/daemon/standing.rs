//! What stands at a directory, by the kernel's table of mounts, and sentences about it. Nothing here waits for whoever serves a mount.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gitmount_proto::mount_table::{self, Entry};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use nix::errno::Errno;
use nix::sys::statfs::statfs;

/// How long a mount may take to say that somebody serves it. Nothing is taken away because it is silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// What one sees where a mount is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// That mount.
    Shown,
    /// That mount is there, and this one hides it.
    Covered(Entry),
    /// Another mount, and not that one below it.
    Other(Entry),
    /// No mount.
    Nothing,
}

/// The table, now.
///
/// # Errors
/// When it cannot be read.
pub fn table() -> Result<Vec<Entry>> {
    mount_table::read().map_err(|e| StoreError::new(Fault::Internal, format!("/proc/self/mountinfo cannot be read ({e})")))
}

/// What stands at `target`, where the gitmount mount with this device is expected, if any.
pub fn look(table: &[Entry], target: &Path, device: Option<u64>) -> Standing {
    let is_it = |entry: &&Entry| device == Some(entry.device) && entry.is_gitmount() && entry.target.as_os_str() == target.as_os_str();
    let top = mount_table::top(table, target);
    if top.as_ref().is_some_and(is_it) {
        return Standing::Shown;
    }
    if let Some(hider) = table.iter().filter(is_it).find_map(|entry| mount_table::hider(table, entry)) {
        return Standing::Covered(hider.clone());
    }
    top.map_or(Standing::Nothing, |entry| Standing::Other(entry.clone()))
}

/// Whether nobody serves a FUSE mount any more: whoever asks it gets ENOTCONN. One whose server is stopped is not dead.
pub fn is_dead(target: &Path, device: u64) -> bool {
    // A thread that waits for a server cannot be ended, so there is one for each mount at most.
    static ASKED: Mutex<BTreeMap<u64, Vec<Sender<bool>>>> = Mutex::new(BTreeMap::new());
    let asked = || ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let (tell, told) = channel();
    let first = {
        let mut asked = asked();
        let waiting = asked.entry(device).or_default();
        waiting.push(tell);
        waiting.len() == 1
    };
    if first {
        let target = target.to_owned();
        let ask = move || {
            // The one question that the kernel never answers from its caches.
            let dead = matches!(statfs(&target), Err(Errno::ENOTCONN));
            for waiting in asked().remove(&device).into_iter().flatten() {
                // Who has lost patience does not listen.
                let _ = waiting.send(dead);
            }
        };
        if std::thread::Builder::new().name("is-dead".into()).spawn(ask).is_err() {
            asked().remove(&device);
        }
    }
    told.recv_timeout(PATIENCE).unwrap_or(false)
}

/// A mount as a person knows it.
fn named(entry: &Entry) -> String {
    let (kind, source) = (String::from_utf8_lossy(&entry.kind), String::from_utf8_lossy(&entry.source));
    if entry.is_gitmount() { format!("gitmount mount of {source}") } else { format!("mount of type {kind} ({source})") }
}

/// How somebody takes a mount away.
fn remedy(entry: &Entry) -> String {
    let program = if entry.is_gitmount() { "gitmount unmount" } else { "umount" };
    format!("`{program} {}`", entry.target.display())
}

/// Why nothing is shown at `target`, on which somebody else mounted something.
pub fn taken(target: &Path, by: &Entry) -> StoreError {
    let text = format!(
        "target {} has a {} on it, which is none of this daemon's: unmount that first with {}, or choose an empty directory",
        target.display(),
        named(by),
        remedy(by)
    );
    StoreError::new(Fault::Usage, text)
}

/// What hides what is shown at `target`, and what to do.
pub fn covered(target: &Path, by: &Entry) -> String {
    let (shown, over) = (target.display(), by.target.display());
    let place = if by.target == target { String::new() } else { format!(" at {over}") };
    format!("{shown} is hidden by a {} over it{place}: unmount that first with {}", named(by), remedy(by))
}

/// Checks that `target` is not inside a tree of gitmount: a mount in there would end with it, and could not be reached without whoever serves it.
///
/// # Errors
/// `Usage` when it is.
pub fn outside(table: &[Entry], target: &Path) -> Result<()> {
    match mount_table::around(table, target) {
        Some(around) if around.is_gitmount() => Err(StoreError::new(
            Fault::Usage,
            format!(
                "target {} is inside the {} at {}, and would end with that: choose a directory outside of it",
                target.display(),
                named(around),
                around.target.display()
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 0:40 / /g ro - fuse.gitmount https://h/a.git ro\n\
        3 1 0:40 / /under ro - fuse.gitmount https://h/a.git ro\n\
        4 3 0:41 / /under rw - tmpfs none rw\n\
        5 1 0:40 / /m/t ro - fuse.gitmount https://h/a.git ro\n\
        6 1 0:42 / /m rw - tmpfs none rw\n\
        7 1 0:43 / /s rw - fuse.sshfs host: rw\n";

    #[test]
    fn what_is_expected_is_shown_covered_replaced_or_gone() {
        let table = mount_table::parse(TABLE);
        let device = Some(nix::sys::stat::makedev(0, 40));
        let at = |target: &str, device| look(&table, Path::new(target), device);
        let entry = |number: usize| table[number].clone();
        assert_eq!(at("/g", device), Standing::Shown);
        assert_eq!(at("/g", None), Standing::Other(entry(1)));
        assert_eq!(at("/under", device), Standing::Covered(entry(3)));
        assert_eq!(at("/under", None), Standing::Other(entry(3)));
        assert_eq!(at("/m/t", device), Standing::Covered(entry(5)));
        assert_eq!(at("/m/t", None), Standing::Nothing);
        assert_eq!(at("/s", Some(nix::sys::stat::makedev(0, 43))), Standing::Other(entry(6)), "a device number may be anybody's");
    }

    #[test]
    fn sentences_name_the_place_what_is_there_and_what_to_do() {
        let table = mount_table::parse(TABLE);
        for (text, words) in [
            (taken(Path::new("/s"), &table[6]).to_string(), ["target /s", "fuse.sshfs (host:)", "`umount /s`"]),
            (taken(Path::new("/g"), &table[1]).to_string(), ["target /g", "gitmount mount of https://h/a.git", "`gitmount unmount /g`"]),
            (covered(Path::new("/m/t"), &table[5]), ["/m/t is hidden", "tmpfs (none) over it at /m", "`umount /m`"]),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn nothing_is_mounted_inside_a_tree_of_gitmount() {
        let table = mount_table::parse(TABLE);
        let inside = |target: &str| outside(&table, Path::new(target)).is_err();
        assert!(inside("/g/x") && inside("/g/x/y"));
        assert!(!inside("/g") && !inside("/gg") && !inside("/under/x") && !inside("/s/x"), "and nowhere else");
    }

    #[test]
    fn what_answers_is_not_dead() {
        assert!(!is_dead(Path::new("/proc"), u64::MAX));
    }
}
