//! Demands in number and in trouble: many volumes of one repository cost one fetch a node, and neither a controller that is away nor an API server
//! that ends loses or doubles one; a driver that starts anew answers what is demanded of private volumes once it has their credentials again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, list, secret};
use gitmount_tests::cluster::webhooks::{Hook, Proof, REQUESTED};
use gitmount_tests::cluster::{Alone, Cluster, Driver, NAMESPACE, Namespace};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(120);
const KEY: &str = "the string that the sender was given";
const PASSWORD: &str = "s3cret-of-demands";
const NODES: [&str; 2] = ["node1", "node2"];

/// A repository, and a pod on each node with all of the volumes that follow it.
struct Scene {
    cluster: &'static Cluster,
    namespace: Alone,
    claims: Vec<Claim>,
    repo: Repo,
    server: HttpServer,
    url: String,
    _dir: tempfile::TempDir,
}

/// Whether the repository asks for a login, which its volumes then have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Public,
    Private,
}

impl Scene {
    fn new(cluster: &'static Cluster, namespace: Alone, volumes: usize, access: Access) -> Result<Self> {
        let dir = scratch::dir()?;
        let repo = Repo::init_bare(dir.path().join("r.git"))?;
        let server = HttpServer::plain_at(cluster.host(), dir.path())?;
        let url = server.url("r.git");
        let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "on-demand"), ("webhookSecret", "hook")];
        let claim = |number| {
            let claim = Claim::new(namespace.name(), &format!("v{number}"), &attributes);
            if access == Access::Private { claim.staged_with("login").published_with("login") } else { claim }
        };
        let claims = (0..volumes).map(claim).collect();
        if access == Access::Private {
            server.require_login("user", PASSWORD);
        }
        let scene = Scene { cluster, namespace, claims, repo, server, url, _dir: dir };
        scene.commit("one")?;
        let login = secret(scene.namespace.name(), "login", &[("username", "user"), ("password", PASSWORD)]);
        let mut objects = vec![secret(scene.namespace.name(), "hook", &[("secret", KEY)]), login];
        objects.extend(scene.claims.iter().map(Claim::object));
        for node in NODES {
            let pod = Pod::new(scene.namespace.name(), node, node);
            let with = |pod: Pod, number| pod.volume(&format!("v{number}"), claimed(&format!("v{number}")));
            objects.push((0..volumes).fold(pod, with).object());
        }
        cluster.kubectl.apply_object(&list(&objects))?;
        for node in NODES {
            cluster.kubectl.wait_pod_ready(scene.namespace.name(), node, DEADLINE)?;
        }
        scene.serves("one")?;
        Ok(scene)
    }

    fn commit(&self, text: &str) -> Result<()> {
        let mut import = Import::into(&self.repo)?;
        import.commit("refs/heads/main", text)?;
        import.file(b"greeting", text)?;
        import.finish()
    }

    /// Waits until every volume on every node shows a commit.
    fn serves(&self, text: &str) -> Result<()> {
        for node in NODES {
            for number in 0..self.claims.len() {
                self.cluster.kubectl.wait_text(self.namespace.name(), node, &format!("/v{number}/greeting"), text, DEADLINE)?;
            }
        }
        Ok(())
    }

    /// How often the host was asked for its refs, which each fetch does once, since this was asked last.
    fn fetches(&self) -> usize {
        self.server.take_requests().iter().filter(|asked| asked.method == "GET").count()
    }

    /// Tells the controller of a push; gives what it says.
    fn push(&self) -> Result<String> {
        let commit = self.repo.id("main")?;
        let body = json!({"url": self.url, "ref": "refs/heads/main", "commit": commit});
        let hook = Hook { proof: Proof::Signature("X-Gitmount-Signature-256", "sha256="), headers: vec![], body };
        let answer = hook.post(&self.cluster.controller()?.address, &format!("/webhook/{}/hook", self.namespace.name()), KEY)?;
        ensure!(answer.0 == 200, "{answer:?}");
        Ok(answer.1)
    }

    /// Demands a pull of every volume by hand.
    fn demand(&self, value: &str) -> Result<()> {
        let volumes: Vec<String> = self.claims.iter().map(Claim::volume).collect();
        let annotation = format!("{REQUESTED}={value}");
        let words: Vec<&str> =
            ["annotate", "pv"].into_iter().chain(volumes.iter().map(String::as_str)).chain([&*annotation, "--overwrite"]).collect();
        self.cluster.kubectl.out(&words).map(drop)
    }

    /// Waits until the demands that were answered on each node are as many as wanted.
    fn answered(&self, driver: &Driver<'_>, wanted: impl Fn([u64; 2]) -> bool) -> Result<()> {
        let now = || -> Result<[u64; 2]> { Ok([self.pulled(driver, NODES[0])?, self.pulled(driver, NODES[1])?]) };
        let answered = wait_for("an answer to each demand", DEADLINE, || wanted(now().ok()?).then_some(()));
        answered.with_context(|| format!("the nodes have answered {:?} demands", now()))
    }

    /// `git_csi_demanded_pulls_total` of all of its volumes on a node.
    fn pulled(&self, driver: &Driver<'_>, node: &str) -> Result<u64> {
        let series = format!("git_csi_demanded_pulls_total{{namespace=\"{}\",", self.namespace.name());
        let metrics = driver.metrics(node, "csi")?;
        let values =
            metrics.lines().filter(|line| line.starts_with(&series)).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        Ok(values.sum())
    }
}

#[test]
fn many_volumes_cost_one_fetch_a_node_and_many_demands_one_at_the_end_of_the_interval() -> Result<()> {
    const INTERVAL: Duration = Duration::from_secs(15);
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "many")?;
    let _driver = cluster.deploy_driver(&namespace, &["hosts.allowHttp=true", &format!("demandMinInterval={}s", INTERVAL.as_secs())])?;
    cluster.controller()?;
    let scene = Scene::new(cluster, namespace, 10, Access::Public)?;
    // So that the interval of the first fetches is over.
    std::thread::sleep(INTERVAL);
    scene.fetches();

    scene.commit("two")?;
    let pushed = Instant::now();
    ensure!(scene.push()? == "marked 10");
    scene.serves("two")?;
    println!("a push was read by 20 volumes on two nodes after {} ms", pushed.elapsed().as_millis());
    let packs = scene.server.requests().iter().filter(|asked| asked.fetch && asked.status == 200).count();
    ensure!(packs == 2, "one push cost {packs} packs on two nodes: {:#?}", scene.server.requests());
    println!("one push with ten volumes asked for refs {} times", scene.fetches());

    scene.commit("three")?;
    let now = Instant::now();
    scene.demand("2098-01-01T00:00:00Z")?;
    scene.demand("2099-01-01T00:00:00Z")?;
    println!("twenty demands took {} ms", now.elapsed().as_millis());
    scene.serves("three")?;
    ensure!(pushed.elapsed() >= INTERVAL, "demands within the interval are answered at its end, not after {:?}", pushed.elapsed());
    let fetches = scene.fetches();
    ensure!(fetches == 2, "twenty demands cost {fetches} fetches on two nodes");
    Ok(())
}

#[test]
fn what_is_away_meanwhile_loses_no_demand_and_doubles_none() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "away")?;
    let driver = cluster.deploy_driver(&namespace, &gitmount_tests::cluster::USUAL)?;
    cluster.controller()?;
    let scene = Scene::new(cluster, namespace, 1, Access::Public)?;
    let k = &cluster.kubectl;

    let deployment = k.json(&["get", "deployment", "gitmount-controller", "-n", NAMESPACE])?;
    let replicas = deployment["spec"]["replicas"].as_u64().context("a Deployment has replicas")?;
    let scale = |replicas: u64| k.out(&["scale", "deployment", "gitmount-controller", "-n", NAMESPACE, &format!("--replicas={replicas}")]);
    scale(0)?;
    wait_for("the end of the controllers", DEADLINE, || {
        let pods = k.json(&["get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller"]).ok()?;
        pods["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    })?;
    scene.commit("while no controller ran")?;
    scale(replicas)?;
    scene.serves("while no controller ran")?;

    cluster.controller()?;
    cluster.restart_api_server()?;
    scene.commit("after the API server's end")?;
    let before = [scene.pulled(&driver, NODES[0])?, scene.pulled(&driver, NODES[1])?];
    // A demand with an end that nothing else has: a start-up demand would be another one.
    let own = |pods: &[Value]| pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)).collect::<Vec<_>>();
    let controllers = own(&cluster.controllers()?);
    scene.demand("2099-01-01T00:00:00Z")?;
    scene.serves("after the API server's end")?;
    scene.answered(&driver, |now| now == before.map(|before| before + 1))?;
    // A webhook finds the volume as well, and everything that was demanded until then was counted.
    scene.commit("a push at last")?;
    ensure!(scene.push()? == "marked 1");
    scene.serves("a push at last")?;
    scene.answered(&driver, |now| now == before.map(|before| before + 2))?;
    ensure!(own(&cluster.controllers()?) == controllers, "a controller was replaced");
    Ok(())
}

/// A driver that starts anew has no credential before the kubelet publishes again, about a minute later: what is demanded until then waits for it.
#[test]
fn a_private_volume_is_pulled_for_a_demand_after_its_driver_was_restarted() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "restarted")?;
    let driver = cluster.usual_driver(&namespace)?;
    cluster.controller()?;
    let scene = Scene::new(cluster, namespace, 1, Access::Private)?;
    let waits = || -> Result<bool> { Ok(driver.views(NODES[0], &scene.url)?.iter().any(|view| view["state"] == "waiting")) };

    // The first demand comes while there is no driver, the second while it has no credential, unless the kubelet is quick.
    cluster.kubectl.delete(&["pod", &driver.pod("node", NODES[0])?, "-n", NAMESPACE])?;
    scene.demand("2097-01-01T00:00:00Z")?;
    cluster.wait_daemonset(NAMESPACE, "gitmount-node", DEADLINE)?;
    println!("the driver waits for the credential: {}", waits()?);
    scene.commit("two")?;
    scene.demand("2098-01-01T00:00:00Z")?;
    scene.serves("two")?;
    ensure!(!waits()?, "it has the credential again");
    scene.answered(&driver, |now| now.iter().all(|pulls| *pulls > 0))?;

    // Nothing else than a demand makes an on-demand volume move now.
    scene.commit("three")?;
    scene.demand("2099-01-01T00:00:00Z")?;
    scene.serves("three")?;
    let leaks = driver.leaks(cluster, &[PASSWORD])?;
    ensure!(leaks.is_empty(), "{leaks:#?}");
    Ok(())
}
