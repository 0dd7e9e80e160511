//! Wrong command lines: exit code 2 and one sentence that shows what would be right.

use super::bench::Bench;

const URL: &str = "https://example.com/a.git";

#[test]
fn no_command_and_unknown_commands() {
    let bench = Bench::new();
    bench.run::<&str>([]).says(2, &["gitmount --help"]);
    bench.run(["mont"]).says(2, &["'mont'", "gitmount --help"]);
    bench.run(["mount"]).says(2, &["<URL|PATH> <DIR>"]);
    bench.run(["mount", URL]).says(2, &["<DIR>"]);
    bench.run(["mount", "--frobnicate", URL, "/mnt"]).says(2, &["'--frobnicate'"]);
    bench.run(["mount", "--pul", "1m", URL, "/mnt"]).says(2, &["'--pul'", "'--pull'"]);
    bench.run(["unmont", "/mnt"]).says(2, &["'unmont'", "'unmount'"]);
}

#[test]
fn values_that_are_wrong_show_right_ones() {
    let bench = Bench::new();
    bench.refused(&["--pull", "often", URL]).says(2, &["\"often\"", "\"1h30m\"", "\"never\"", "\"on-demand\" (that with --socket only)"]);
    bench.refused(&["--pull", "0s", URL]).says(2, &["one second"]);
    bench.refused(&["--depth", "all", URL]).says(2, &["\"all\"", "0 for the whole history"]);
    bench.refused(&["--offline", "maybe", URL]).says(2, &["'maybe'", "refuse, allowStale"]);
    bench.refused(&["--path", "/docs", URL]).says(2, &["\"/docs\"", "starts with a slash"]);
    bench.refused(&["--path", "a/../b", URL]).says(2, &["\"..\""]);
    bench.run(["status", "--output", "yaml"]).says(2, &["'yaml'", "table, json"]);
}

#[test]
fn each_unfit_mount_point_has_its_own_sentence() {
    let bench = Bench::new();
    std::fs::write(bench.path("file"), "x").unwrap();
    std::fs::create_dir_all(bench.path("full/entry")).unwrap();
    for (dir, what) in [("missing", "does not exist"), ("file", "is not a directory"), ("full", "is not empty")] {
        bench.run(["mount", URL, dir]).says(2, &[dir, what, "give an empty directory"]);
    }
    let ended = bench.run(["mount", "full", URL]);
    ended.says(2, &[URL, "give the URL first and then the directory"]);
}

#[test]
fn the_mount_point_is_checked_before_the_host_is_asked() {
    let bench = Bench::new();
    let ended = bench.run(["mount", "ssh://git@127.0.0.1:1/a.git", "missing"]);
    ended.says(2, &["does not exist"]);
}
