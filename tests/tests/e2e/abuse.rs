//! Who means the webhook controller ill: bodies that are huge, slow, deep or of other types, connections that say nothing. Each is turned away,
//! nothing is marked, the memory stays bounded, and a good request is answered meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Claim, list, secret};
use gitmount_tests::cluster::webhooks::{Answer, Hook, Proof, answer, head};
use gitmount_tests::cluster::{Cluster, NAMESPACE, Namespace};
use gitmount_tests::run::wait_for;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(90);
const KEY: &str = "the string that the sender was given";
const URL: &str = "https://code.example.com/data/f.git";

/// What the controller may take, in KiB: three quarters of the chart's limit. All bodies together are 80 MiB, and one that is parsed takes
/// its size once more.
const MEMORY: u64 = 192 << 10;

const PROOF: Proof = Proof::Signature("X-Gitmount-Signature-256", "sha256=");

fn hook(body: Value) -> Hook {
    Hook { proof: PROOF, headers: vec![], body }
}

/// A value of `/proc/<pid>/status`, in KiB.
fn memory(pid: i32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).with_context(|| format!("{field} in {status}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// A body of a gibibyte, as far as it is taken; gives the answer, if any, and how much was taken.
fn gibibyte(address: &str, path: &str) -> Result<(Option<Answer>, u64)> {
    const SIZE: u64 = 1 << 30;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.write_all(head(path, &[("X-Gitmount-Signature-256", "sha256=00")], SIZE).as_bytes())?;
    let (piece, mut sent) = (vec![b'x'; 1 << 16], 0);
    while sent < SIZE && stream.write_all(&piece).is_ok() {
        sent += piece.len() as u64;
    }
    Ok((answer(stream).ok(), sent))
}

#[test]
fn nothing_that_is_sent_takes_the_controller_down_or_marks() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "abuse")?;
    let _driver = cluster.deploy_driver(&namespace, &["hosts.allowHttp=true", "demandMinInterval=1s", "controller.replicas=1"])?;
    let one = || Some(cluster.controllers().ok()?.len()).filter(|count| *count == 1).map(drop);
    wait_for("a single controller", DEADLINE, one)?;
    let controller = cluster.controller()?;
    let (address, path) = (controller.address.as_str(), format!("/webhook/{}/hook", namespace.name()));
    let attributes = [("url", URL), ("ref", "main"), ("pull", "on-demand"), ("webhookSecret", "hook")];
    let claim = Claim::new(namespace.name(), "data", &attributes);
    cluster.kubectl.apply_object(&list(&[secret(namespace.name(), "hook", &[("secret", KEY)]), claim.object()]))?;
    cluster.wait_bound(namespace.name())?;
    let good = hook(json!({"url": URL, "ref": "refs/heads/main"}));
    let marked = || good.post(address, &path, KEY).ok().filter(|answer| answer == &(200, "marked 1".to_owned())).map(drop);
    wait_for("a good request that marks", DEADLINE, marked)?;
    let pid = cluster.pid_of(NAMESPACE, &controller.pod, "controller")?;
    let before = memory(pid, "VmRSS")?;
    let marks = || cluster.annotations(namespace.name());
    let unmarked = marks()?;

    // Signed, so that it is read: none of it is a push.
    let deep = "[".repeat(20 << 20);
    let texts = [
        "",
        "nonsense",
        "{",
        "null",
        "7",
        "[]",
        "{}",
        "\"push\"",
        "\u{0}",
        &deep,
        &format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
    ];
    let mut bodies: Vec<String> = texts.map(str::to_owned).into();
    // Many small values, which are many times as large once they are read.
    for (piece, around) in
        [("0,", ("[", "0]")), ("[],", ("{\"ref\":[", "0]}")), ("{\"url\":\"\"},", ("[", "0]")), ("\"a\":0,", ("{", "\"a\":0}"))]
    {
        bodies.push(format!("{}{}{}", around.0, piece.repeat((24 << 20) / piece.len()), around.1));
    }
    for (url, name) in [
        (json!(7), json!("refs/heads/main")),
        (json!([URL]), json!("refs/heads/main")),
        (json!({"a": URL}), json!("refs/heads/main")),
        (json!(URL), json!(null)),
        (json!(URL), json!(true)),
        (json!(URL), json!(["refs/heads/main"])),
        (json!(URL), json!({"name": "refs/heads/main"})),
        (json!("u".repeat(1 << 20)), json!("refs/heads/main")),
        (json!(URL), json!("r".repeat(1 << 20))),
    ] {
        bodies.push(json!({"url": url, "ref": name}).to_string());
    }
    for body in &bodies {
        let refused = hook(Value::Null).post_as(address, &path, &PROOF.header(KEY, body.as_bytes()), body.as_bytes())?;
        ensure!(refused.0 == 400, "{body:.60}: {refused:?}");
    }
    ensure!(marks()? == unmarked, "what is malformed marks nothing");

    // Connections that say nothing, half a head, and half a body.
    let mut open = vec![];
    for number in 0..200 {
        let mut stream = TcpStream::connect(address)?;
        let half = head(&path, &[], 1000);
        let said = match number % 4 {
            0 | 1 => "",
            2 => &half[..half.len() / 2],
            _ => &half,
        };
        stream.write_all(said.as_bytes())?;
        open.push(stream);
    }
    std::thread::scope(|scope| -> Result<()> {
        let huge: Vec<_> = (0..4).map(|_| scope.spawn(|| gibibyte(address, &path))).collect();
        let slow = scope.spawn(|| -> Result<Answer> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(head(&path, &[], 1 << 20).as_bytes())?;
            stream.write_all(b"{")?;
            answer(stream)
        });
        let began = Instant::now();
        let answered = good.post(address, &path, KEY)?;
        ensure!(answered == (200, "marked 1".to_owned()), "{answered:?}");
        println!("a good request was answered after {} ms among {} that are none", began.elapsed().as_millis(), open.len() + 5);
        for one in huge {
            let (answer, sent) = one.join().expect("it does not panic")?;
            ensure!(sent < 1 << 30, "a gibibyte was taken");
            ensure!(answer.as_ref().is_none_or(|answer| (400..500).contains(&answer.0)), "{answer:?}");
            println!("of a gibibyte, {} MiB were taken before {answer:?}", sent >> 20);
        }
        let slow = slow.join().expect("it does not panic")?;
        ensure!(slow.0 == 408, "{slow:?}");
        Ok(())
    })?;
    drop(open);
    let answered = good.post(address, &path, KEY)?;
    ensure!(answered == (200, "marked 1".to_owned()), "{answered:?}");

    let (after, most) = (memory(pid, "VmRSS")?, memory(pid, "VmHWM")?);
    println!("the controller took {before} KiB before, {after} KiB after, {most} KiB at most");
    ensure!(most < MEMORY, "the controller took {most} KiB");
    let pods = cluster.controllers()?;
    let status = &pods.first().context("a controller")?["status"]["containerStatuses"][0];
    ensure!(status["restartCount"] == 0 && cluster.pid_of(NAMESPACE, &controller.pod, "controller")? == pid, "{status}");
    Ok(())
}
