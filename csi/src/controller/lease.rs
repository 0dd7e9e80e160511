//! The demand at the start: webhooks that came while no controller ran are lost, so one of the replicas demands a pull of every volume when
//! it takes the lease, which it does when nobody holds it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

/// The lease's name.
const NAME: &str = "gitmount-controller";

/// A lease that was not seen to be renewed for so long is nobody's.
const DURATION: Duration = Duration::from_secs(15);

/// How often it is renewed, or tried for.
const RENEW: Duration = Duration::from_secs(5);

/// Takes part in the lease of `namespace` for ever, as `identity`.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    holds: bool,
    seen: Seen,
}

/// The state of somebody else's lease that was seen last, and since when. The clocks of two nodes may differ, so only this one's counts: the
/// other's times are compared with each other alone.
#[derive(Debug, Default)]
struct Seen(Option<(LeaseSpec, Instant)>);

/// Whose a lease is.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Own,
    Nobody,
    Other,
}

impl Seen {
    fn owner(&mut self, spec: &LeaseSpec, identity: &str, now: Instant) -> Owner {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == identity {
            self.0 = None;
            return if holder.is_empty() { Owner::Nobody } else { Owner::Own };
        }
        let since = match &self.0 {
            Some((seen, since)) if seen == spec => *since,
            _ => {
                self.0 = Some((spec.clone(), now));
                now
            }
        };
        let lasts = Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or_default());
        if now.duration_since(since) < lasts { Owner::Other } else { Owner::Nobody }
    }
}

/// Does `work` each time `taken` ends.
async fn each_time<W: Future<Output = ()>>(mut taken: impl AsyncFnMut(), work: impl Fn() -> W) {
    taken().await;
    loop {
        let mut next = std::pin::pin!(taken());
        tokio::select! {
            () = work() => next.await,
            // It was another's meanwhile.
            () = &mut next => {}
        }
    }
}

impl Candidate {
    /// A candidate that holds nothing yet.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Candidate { leases: Api::namespaced(client, namespace), identity, holds: false, seen: Seen::default() }
    }

    /// Does `work` each time the lease is taken, for ever. It is renewed meanwhile, so that no other replica takes it and does the same however
    /// long that lasts.
    pub async fn each_time<W: Future<Output = ()>>(&mut self, work: impl Fn() -> W) {
        each_time(async || self.taken().await, work).await;
    }

    /// Waits until the lease is taken: at the start, or when its holder is gone.
    async fn taken(&mut self) {
        loop {
            match self.step().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the lease {NAME} cannot be taken or renewed"),
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    /// Gives the lease back, so that another replica need not wait until it runs out.
    pub async fn release(&self) {
        let released = async {
            let Some(mut lease) = self.leases.get_opt(NAME).await? else { return Ok(()) };
            if let Some(spec) = &mut lease.spec
                && spec.holder_identity.as_deref() == Some(&self.identity)
            {
                spec.holder_identity = None;
                self.leases.replace(NAME, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(RENEW, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease {NAME} is not given back"),
            Err(_) => tracing::warn!("the lease {NAME} is not given back: the API server does not answer"),
        }
    }

    /// Takes or renews the lease; `true` when it was taken now.
    async fn step(&mut self) -> kube::Result<bool> {
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX)),
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            ..Default::default()
        };
        let parameters = PostParams::default();
        let written = match self.leases.get_opt(NAME).await? {
            None => {
                let metadata = ObjectMeta { name: Some(NAME.into()), ..Default::default() };
                self.leases.create(&parameters, &Lease { metadata, spec: Some(spec) }).await
            }
            Some(mut lease) => {
                let found = lease.spec.take().unwrap_or_default();
                if self.seen.owner(&found, &self.identity, Instant::now()) == Owner::Other {
                    self.holds = false;
                    return Ok(false);
                }
                // With the version that was read: of two who write, one is refused.
                lease.spec = Some(spec);
                self.leases.replace(NAME, &parameters, &lease).await
            }
        };
        match written {
            Ok(_) => Ok(!std::mem::replace(&mut self.holds, true)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_while_the_work_goes_on() {
        let (taken, renewed, seen) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let take = async || {
            if taken.replace(taken.get() + 1) > 0 {
                for _ in 0..60 {
                    tokio::time::sleep(RENEW).await;
                    renewed.set(renewed.get() + 1);
                }
            }
        };
        let work = || async {
            tokio::time::sleep(4 * DURATION + RENEW / 2).await;
            seen.set(renewed.get());
        };
        assert!(tokio::time::timeout(50 * RENEW, each_time(take, work)).await.is_err(), "it goes on for ever");
        assert_eq!((taken.get(), seen.get()), (2, 12), "taken once, and then renewed while the work took four times as long as it lasts");
    }

    #[tokio::test(start_paused = true)]
    async fn the_work_is_done_each_time_it_is_taken() {
        let done = Cell::new(0);
        let work = || async { done.set(done.get() + 1) };
        let _ = tokio::time::timeout(10 * RENEW + RENEW / 2, each_time(async || tokio::time::sleep(RENEW).await, work)).await;
        assert_eq!(done.get(), 10);
    }

    fn spec(holder: &str, renewed: jiff::Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(renewed)),
            ..Default::default()
        }
    }

    #[test]
    fn a_lease_is_its_holders_until_it_is_not_renewed() {
        let (mut seen, start, time) = (Seen::default(), Instant::now(), jiff::Timestamp::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(seen.owner(&spec("b", time), "a", at(0)), Owner::Other);
        assert_eq!(seen.owner(&spec("b", time), "a", at(14)), Owner::Other);
        assert_eq!(seen.owner(&spec("b", time), "a", at(15)), Owner::Nobody);
        assert_eq!(seen.owner(&spec("c", time), "a", at(16)), Owner::Other, "it is another's now");
        assert_eq!(seen.owner(&spec("a", time), "a", at(60)), Owner::Own);
        assert_eq!(seen.owner(&spec("c", time), "a", at(61)), Owner::Other, "what was seen before is forgotten");
        assert_eq!(seen.owner(&spec("", time), "a", at(62)), Owner::Nobody);
        assert_eq!(seen.owner(&LeaseSpec::default(), "a", at(63)), Owner::Nobody);
    }

    #[test]
    fn clocks_that_differ_take_no_lease_away_and_keep_none() {
        for skew in [-86_400, -20, 20, 86_400] {
            let (mut seen, start) = (Seen::default(), Instant::now());
            let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(skew);
            let mut now = start;
            for renewal in 0..20 {
                now = start + RENEW * renewal;
                let renewed = time + RENEW * renewal;
                assert_eq!(seen.owner(&spec("b", renewed), "a", now), Owner::Other, "{skew} s, renewal {renewal}");
            }
            let last = time + RENEW * 19;
            assert_eq!(seen.owner(&spec("b", last), "a", now + DURATION), Owner::Nobody, "{skew} s");
        }
    }
}
