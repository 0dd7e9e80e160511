//! `gitmount completions`.

use super::bench::Bench;

#[test]
fn every_shell_gets_a_script_with_the_commands() {
    let bench = Bench::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = bench.run(["completions", shell]);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{shell}");
        for word in ["unmount", "verify", "allow-http"] {
            assert!(ended.out.contains(word), "{shell} lacks {word}");
        }
        assert!(!ended.out.contains("background-child"), "{shell} offers a hidden option");
    }
}

#[test]
fn the_script_for_bash_is_valid() {
    use std::io::Write;
    let script = Bench::new().run(["completions", "bash"]).out;
    let mut bash = std::process::Command::new("bash").args(["-n"]).stdin(std::process::Stdio::piped()).spawn().expect("bash is installed");
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn an_unknown_shell_is_refused_with_the_known_ones() {
    Bench::new().run(["completions", "tcsh"]).says(2, &["'tcsh'", "bash", "zsh"]);
}
