//! `--help` and `--version`.

use super::bench::Bench;

#[test]
fn help_lists_the_commands_and_exit_codes() {
    let ended = Bench::new().run(["--help"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    for text in ["mount", "unmount", "pull", "status", "verify", "gc", "hold", "completions", "Exit codes:", "5  the host does not answer"]
    {
        assert!(ended.out.contains(text), "{text} is missing in\n{}", ended.out);
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    let bench = Bench::new();
    for command in ["mount", "unmount", "pull", "status", "verify", "gc", "hold", "completions"] {
        let ended = bench.run([command, "--help"]);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{command}");
        assert!(ended.out.contains("Example") && ended.out.contains(&format!("  gitmount {command}")), "{}", ended.out);
        assert!(!ended.out.contains("background-child"), "a hidden option shows");
    }
}

#[test]
fn mount_help_names_every_option_and_default() {
    let ended = Bench::new().run(["mount", "--help"]);
    for text in [
        "--ref",
        "[default: HEAD]",
        "--path",
        "--pull",
        "[default: 5m]",
        "--depth",
        "[default: 1]",
        "--offline",
        "allowStale",
        "--store",
        "--allow-http",
        "--allow-file",
        "--allow-other",
        "-f, --foreground",
    ] {
        assert!(ended.out.contains(text), "{text} is missing in\n{}", ended.out);
    }
}

#[test]
fn help_names_every_state_and_interval() {
    let bench = Bench::new();
    let status = bench.run(["status", "--help"]).out;
    for state in ["ok", "stale", "failing", "gone", "waiting", "unmounted", "covered", "detached", "dead"] {
        assert!(status.contains(state), "{state} is missing in\n{status}");
    }
    let mount = bench.run(["mount", "--help"]).out;
    assert!(mount.contains("never") && mount.contains("on-demand"), "{mount}");
}

#[test]
fn version_is_one_line() {
    let ended = Bench::new().run(["--version"]);
    assert_eq!((ended.code, ended.out), (0, format!("gitmount {}\n", env!("CARGO_PKG_VERSION"))));
}
