//! The test cluster by hand: `gitmount-cluster up` brings up the one that the end-to-end tests use, or finds it; `down` ends it.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gitmount_tests::cluster::build::Component;
use gitmount_tests::cluster::{Cluster, NODES, condition};

const USAGE: &str = "\
gitmount-cluster up [--nodes N]    bring the cluster up, or find the one that runs
gitmount-cluster down              end it and remove its directory
gitmount-cluster status            say what runs
gitmount-cluster build             build the programs it consists of
gitmount-cluster kubectl ARGS…     kubectl as its administrator
gitmount-cluster node N COMMAND…   run a command in the namespaces of a node (ctr, mount, ip, …)
GITMOUNT_CLUSTER_DIR names another directory than /var/tmp/gitmount-cluster, and so another cluster beside it.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gitmount-cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<ExitCode> {
    match words {
        ["up", rest @ ..] => {
            let nodes = match rest {
                [] => NODES,
                ["--nodes", count] => count.parse().with_context(|| format!("--nodes takes 1 or 2, not {count}"))?,
                _ => bail!("`up` takes --nodes and nothing else\n{USAGE}"),
            };
            status(&Cluster::up(nodes)?)?;
        }
        ["down"] => Cluster::down()?,
        ["status"] => status(&Cluster::attach(NODES).context("no cluster runs")?)?,
        ["build"] => {
            for component in Component::ALL {
                println!("{}", component.programs()?.display());
            }
        }
        ["kubectl", rest @ ..] => bail!(Cluster::attach(NODES)?.kubectl.command(rest).exec()),
        ["node", number, rest @ ..] => {
            let cluster = Cluster::attach(NODES)?;
            let number: usize = number.parse().context("nodes are numbered from 1")?;
            let node = cluster.nodes().get(number.wrapping_sub(1)).with_context(|| format!("there is no node {number}"))?;
            let finished = node.run(rest)?;
            print!("{}", finished.out());
            eprint!("{}", finished.err());
            return Ok(ExitCode::from(u8::try_from(finished.code()).unwrap_or(1)));
        }
        _ => bail!("\n{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn status(cluster: &Cluster) -> Result<()> {
    println!("{}, logs in {}", cluster.dir().display(), cluster.dir().join("processes").display());
    println!("reached from nodes and pods: {}", cluster.host());
    for node in cluster.nodes() {
        let state = cluster.kubectl.json(&["get", "node", &node.name()])?;
        let ready = condition(&state, "Ready") == Some("True");
        let pids = [node.kubelet().pid(), node.containerd().pid()].map(|pid| pid.unwrap_or(0));
        println!(
            "{} {} {} kubelet {} containerd {}",
            node.name(),
            node.address(),
            if ready { "Ready" } else { "not ready" },
            pids[0],
            pids[1]
        );
    }
    println!("kubectl: {}", cluster.program("kubectl").display());
    println!("KUBECONFIG: {}", cluster.dir().join("pki/admin.conf").display());
    Ok(())
}
