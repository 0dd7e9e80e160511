//! Commands about mounts, where there are none, and the runtime directory.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use super::bench::Bench;

#[test]
fn status_without_mounts_is_empty_and_no_error() {
    let bench = Bench::new();
    let table = bench.run(["status"]);
    assert_eq!((table.code, table.out.as_str(), table.err.as_str()), (0, "nothing is mounted\n", ""));
    let json = bench.run(["status", "--output", "json"]);
    assert_eq!((json.code, json.out.as_str()), (0, "[]\n"));
    assert_eq!(std::fs::metadata(bench.path("run")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn commands_about_a_directory_that_is_no_mount_do_not_find_it() {
    let bench = Bench::new();
    let mnt = bench.mnt();
    let mnt = mnt.to_str().unwrap();
    for args in [vec!["unmount", mnt], vec!["unmount", "--lazy", mnt], vec!["pull", mnt], vec!["status", mnt], vec!["verify", mnt]] {
        bench.run(args).says(3, &[mnt, "is no gitmount mount", "`gitmount status`"]);
    }
    for command in ["unmount", "pull", "status"] {
        bench.run([command, "/no/such/directory"]).says(3, &["/no/such/directory", "is no gitmount mount"]);
    }
}

#[test]
fn the_socket_of_a_dead_process_is_removed() {
    let bench = Bench::new();
    let run = bench.path("run");
    std::fs::create_dir(&run).unwrap();
    let socket = run.join("0123456789abcdef.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    assert_eq!(bench.run(["status"]).out, "nothing is mounted\n");
    assert!(!socket.exists());
}

#[test]
fn a_runtime_directory_that_is_open_to_others_is_closed() {
    let bench = Bench::new();
    let run = bench.path("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(bench.run(["status"]).code, 0);
    assert_eq!(std::fs::metadata(&run).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_runtime_directory_behind_a_link_is_refused() {
    let bench = Bench::new();
    std::os::unix::fs::symlink(bench.path("home"), bench.path("run")).unwrap();
    bench.run(["status"]).says(4, &["GITMOUNT_RUNTIME_DIR", "directory of your own"]);
}

#[test]
fn gc_and_verify_without_a_store() {
    let bench = Bench::new();
    let gc = bench.run(["gc"]);
    assert_eq!((gc.code, gc.out.as_str(), gc.err.as_str()), (0, "", ""));
    for command in ["gc", "verify"] {
        bench.run([command, "https://example.com/a.git"]).says(3, &["https://example.com/a.git", "is not in the store"]);
        bench.run([command, "ftp://example.com/a.git"]).says(2, &["ftp"]);
    }
}
