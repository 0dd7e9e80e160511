//! The webhook controller as forges see it: requests to it, signed as each forge does, and what they mark.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use super::{Cluster, NAMESPACE, condition, hex};
use crate::run::wait_for;

const DEADLINE: Duration = Duration::from_secs(90);

/// The annotation that demands a pull.
pub const REQUESTED: &str = "git.liken.sh/pull-requested-at";
/// The annotation that says which commit is expected.
pub const EXPECTED: &str = "git.liken.sh/pull-expected-commit";

/// The name and the address of a controller's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// The pod.
    pub pod: String,
    /// Where it takes webhooks.
    pub address: String,
}

impl Cluster {
    /// A controller that is ready, once one of those that run has made the demand at the start: it disturbs no volume that is made after this.
    pub fn controller(&self) -> Result<Controller> {
        wait_for("a controller that is ready, and the holder of its lease", DEADLINE, || {
            let lease = self.kubectl.json(&["get", "lease", "gitmount-controller", "-n", NAMESPACE]).ok()?;
            let pods = self.controllers().ok()?;
            let holds = |pod: &&Value| pod["metadata"]["name"] == lease["spec"]["holderIdentity"];
            pods.iter().find(holds)?;
            let ready = pods.iter().find(|pod| condition(pod, "Ready") == Some("True"))?;
            let pod = ready["metadata"]["name"].as_str()?.to_owned();
            Some(Controller { pod, address: format!("{}:8080", ready["status"]["podIP"].as_str()?) })
        })
    }

    /// The pods of the controller that are not being deleted.
    pub fn controllers(&self) -> Result<Vec<Value>> {
        let selector = "app.kubernetes.io/component=controller";
        let mut pods = self.kubectl.json(&["get", "pods", "-n", NAMESPACE, "-l", selector])?;
        let Value::Array(pods) = pods["items"].take() else { return Ok(vec![]) };
        Ok(pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect())
    }

    /// The annotations of the PersistentVolumes whose claims are in a namespace.
    pub fn annotations(&self, namespace: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
        let volumes = self.kubectl.json(&["get", "pv", "-l", &format!("{}={namespace}", super::pods::OF)])?;
        let of = |volume: &Value| {
            let own = volume["metadata"]["annotations"].as_object().into_iter().flatten();
            let own = own.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            Some((
                volume["metadata"]["name"].as_str()?.to_owned(),
                own.filter(|(key, _)| [REQUESTED, EXPECTED].contains(&&**key)).collect(),
            ))
        };
        Ok(volumes["items"].as_array().into_iter().flatten().filter_map(of).collect())
    }

    /// Waits until every PersistentVolume of a namespace is bound.
    pub fn wait_bound(&self, namespace: &str) -> Result<()> {
        let phases = ["get", "pv", "-l", &format!("{}={namespace}", super::pods::OF), "-o", "jsonpath={.items[*].status.phase}"];
        wait_for("bound volumes", DEADLINE, || {
            let phases = self.kubectl.out(&phases).ok()?;
            (!phases.is_empty() && phases.split(' ').all(|phase| phase == "Bound")).then_some(())
        })
    }
}

/// The status and the text of an answer.
pub type Answer = (u16, String);

/// Posts a body.
///
/// # Errors
/// When there is no answer.
pub fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(head(path, headers, body.len() as u64).as_bytes())?;
    // A server that has heard enough closes.
    let _ = stream.write_all(body);
    answer(stream)
}

/// The head of a request for a body of `length` bytes.
pub fn head(path: &str, headers: &[(&str, &str)], length: u64) -> String {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

/// Reads an answer to its end.
///
/// # Errors
/// When it is none.
pub fn answer(mut stream: TcpStream) -> Result<Answer> {
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).with_context(|| format!("the answer is {answer:?}"))?;
    Ok((status, answer.split_once("\r\n\r\n").map(|(_, text)| text.trim().to_owned()).unwrap_or_default()))
}

/// How a forge shows that it knows the Secret's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// HMAC-SHA256 of the body, hexadecimal, in a header with a prefix.
    Signature(&'static str, &'static str),
    /// The value itself in a header.
    Token(&'static str),
    /// The value as the password of the basic authentication.
    Password,
}

impl Proof {
    /// The header of a request.
    pub fn header(self, key: &str, body: &[u8]) -> (&'static str, String) {
        match self {
            Proof::Signature(header, prefix) => {
                let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("HMAC takes keys of any length");
                mac.update(body);
                (header, format!("{prefix}{}", hex(&mac.finalize().into_bytes())))
            }
            Proof::Token(header) => (header, key.to_owned()),
            Proof::Password => {
                let login = base64::engine::general_purpose::STANDARD.encode(format!("hook:{key}"));
                ("Authorization", format!("Basic {login}"))
            }
        }
    }
}

/// A request of a forge.
#[derive(Debug, Clone)]
pub struct Hook {
    /// How it is signed.
    pub proof: Proof,
    /// The headers that say what happened.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The payload.
    pub body: Value,
}

impl Hook {
    /// Posts it, signed with `key`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn post(&self, address: &str, path: &str, key: &str) -> Result<Answer> {
        let body = self.body.to_string();
        self.post_as(address, path, &self.proof.header(key, body.as_bytes()), body.as_bytes())
    }

    /// Posts another body, or one that is signed otherwise, with its headers.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn post_as(&self, address: &str, path: &str, proof: &(&'static str, String), body: &[u8]) -> Result<Answer> {
        let headers: Vec<_> = self.headers.iter().copied().chain([(proof.0, &*proof.1)]).collect();
        post(address, path, &headers, body)
    }
}
