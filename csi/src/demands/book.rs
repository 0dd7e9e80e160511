//! Which demand makes a node pull: one whose time is later than the start of the last fetch that worked, less one minute for clocks that
//! run behind; each value once; none for what is no time.

use std::collections::{HashMap, HashSet};

use gitmount_proto::fsd::v1 as fsd;

/// How far a writer's clock may be behind the node's, in milliseconds.
const GRACE: i64 = 60_000;

/// A demand on a PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// The annotation's value.
    pub value: String,
    /// The commit that is expected.
    pub commit: Option<String>,
}

/// What a demand leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The repositories to pull, all of their volumes.
    pub urls: Vec<String>,
    /// The commit that is expected.
    pub commit: Option<String>,
}

/// The demands on all PersistentVolumes, of this driver or not: which ones this node holds changes.
#[derive(Debug, Default)]
pub struct Book {
    demands: HashMap<String, Demand>,
    /// The value that was decided on last.
    decided: HashMap<String, String>,
}

impl Book {
    /// A volume's annotations were read; gives whether there is something to decide.
    pub fn annotated(&mut self, volume: &str, demand: Option<Demand>) -> bool {
        match demand {
            Some(demand) => {
                let fresh = self.decided.get(volume) != Some(&demand.value);
                self.demands.insert(volume.to_owned(), demand);
                fresh
            }
            None => {
                self.demands.remove(volume);
                self.decided.remove(volume);
                false
            }
        }
    }

    /// All volumes but these are gone.
    pub fn retain(&mut self, names: &HashSet<String>) {
        self.demands.retain(|name, _| names.contains(name));
        self.decided.retain(|name, _| names.contains(name));
    }

    /// Decides on the demand on a volume, whose views are among `views`. A node that does not hold the volume decides when it does.
    pub fn due(&mut self, volume: &str, views: &[fsd::View]) -> Option<Act> {
        let demand = self.demands.get(volume)?;
        if self.decided.get(volume) == Some(&demand.value) {
            return None;
        }
        let own: Vec<&fsd::View> = super::of(views, volume).collect();
        if own.is_empty() {
            return None;
        }
        self.decided.insert(volume.to_owned(), demand.value.clone());
        let Ok(time) = demand.value.trim().parse::<jiff::Timestamp>() else {
            tracing::warn!(volume, value = demand.value, "a demand is no time and does nothing: write one such as 2026-01-31T12:00:00Z");
            return None;
        };
        let newer = |view: &&fsd::View| match view.last_success_ms {
            Some(last) => time.as_millisecond() > i64::try_from(last).unwrap_or(i64::MAX) - GRACE,
            None => true,
        };
        let mut urls: Vec<String> =
            own.into_iter().filter(|view| view.pull != "never").filter(newer).map(|view| view.url.clone()).collect();
        urls.sort_unstable();
        urls.dedup();
        (!urls.is_empty()).then(|| Act { urls, commit: demand.commit.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FETCHED: u64 = 1_700_000_000_000;

    fn view(volume: &str, last_success_ms: Option<u64>) -> fsd::View {
        let volume = fsd::Volume { spec_name: volume.into(), persistent: true, ..Default::default() };
        fsd::View { url: "https://example.com/a".into(), volumes: vec![volume], last_success_ms, ..Default::default() }
    }

    fn at(offset_seconds: i64) -> Demand {
        let time = jiff::Timestamp::from_millisecond(i64::try_from(FETCHED).unwrap() + offset_seconds * 1000).unwrap();
        Demand { value: time.to_string(), commit: None }
    }

    /// What one value leads to on a node that fetched at [`FETCHED`].
    fn acts(demand: Demand) -> bool {
        let mut book = Book::default();
        book.annotated("pv", Some(demand));
        book.due("pv", &[view("pv", Some(FETCHED))]).is_some()
    }

    #[test]
    fn a_demand_is_compared_with_the_last_fetch_less_a_minute() {
        assert!(acts(at(1)) && acts(at(0)) && acts(at(-59)));
        assert!(!acts(at(-60)) && !acts(at(-3600)));
        assert!(acts(at(86_400)), "a clock that runs ahead costs one pull");
    }

    #[test]
    fn each_value_acts_once() {
        let (mut book, views) = (Book::default(), [view("pv", Some(FETCHED))]);
        assert!(book.annotated("pv", Some(at(1))));
        assert!(book.due("pv", &views).is_some() && book.due("pv", &views).is_none());
        assert!(!book.annotated("pv", Some(at(1))), "read again, as after the watch began anew");
        assert!(book.due("pv", &views).is_none());
        assert!(book.annotated("pv", Some(at(2))) && book.due("pv", &views).is_some());
    }

    #[test]
    fn what_is_no_time_does_nothing() {
        for value in ["", "now", "yesterday", "1700000000", "2026-01-31", "2026-01-31T12:00:00"] {
            assert!(!acts(Demand { value: value.into(), commit: None }), "{value}");
        }
        for value in ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456Z", "2026-01-31T13:00:00+01:00", " 2026-01-31T12:00:00Z\n"] {
            assert!(acts(Demand { value: value.into(), commit: None }), "{value}");
        }
    }

    #[test]
    fn a_node_that_gets_the_volume_later_decides_then() {
        let mut book = Book::default();
        book.annotated("pv", Some(at(-30)));
        assert!(book.due("pv", &[view("other", None)]).is_none());
        assert!(book.due("pv", &[view("pv", Some(FETCHED))]).is_some(), "inside the minute it pulls once more");
        book.annotated("old", Some(at(-61)));
        assert!(book.due("old", &[view("old", Some(FETCHED))]).is_none());
    }

    #[test]
    fn without_a_fetch_that_worked_any_time_is_later() {
        let mut book = Book::default();
        book.annotated("pv", Some(at(-86_400)));
        assert!(book.due("pv", &[view("pv", None)]).is_some());
    }

    #[test]
    fn an_inline_volume_of_the_same_name_is_not_meant() {
        let mut book = Book::default();
        book.annotated("pv", Some(at(1)));
        let mut inline = view("pv", None);
        inline.volumes[0].persistent = false;
        assert!(book.due("pv", &[inline]).is_none());
    }

    #[test]
    fn a_volume_that_never_pulls_ignores_it() {
        let mut book = Book::default();
        book.annotated("pv", Some(at(1)));
        assert!(book.due("pv", &[fsd::View { pull: "never".into(), ..view("pv", None) }]).is_none());
    }

    /// What a plugin that has just started does about a demand, and how often, on a node whose last fetch that worked began then.
    fn after_a_restart(demanded: i64, fetched: Option<i64>) -> usize {
        let began = |seconds: i64| FETCHED.checked_add_signed(seconds * 1000).unwrap();
        let (mut book, views) = (Book::default(), [view("pv", fetched.map(began))]);
        // It lists the volumes, the kubelet publishes again, and the watch begins anew.
        (0..3)
            .filter(|_| {
                book.annotated("pv", Some(at(demanded)));
                book.retain(&["pv".to_owned()].into());
                book.due("pv", &views).is_some()
            })
            .count()
    }

    #[test]
    fn a_restarted_plugin_takes_up_what_no_fetch_has_answered() {
        let before = 0;
        assert_eq!(after_a_restart(600, Some(before)), 1, "it came while the plugin was away, or every fetch since has failed");
        assert_eq!(after_a_restart(600, None), 1, "the daemon was restarted, too");
        assert_eq!(after_a_restart(-86_400, None), 1, "and what it fetched before is not known");
    }

    #[test]
    fn a_restarted_plugin_does_not_repeat_what_was_answered() {
        for answered in [660, 661, 3600, 86_400] {
            assert_eq!(after_a_restart(600, Some(answered)), 0, "{answered}");
        }
        for within_the_minute in [600, 601, 659] {
            assert_eq!(after_a_restart(600, Some(within_the_minute)), 1, "clocks differ, and one pull more costs little");
        }
    }

    #[test]
    fn a_fetch_that_failed_does_not_answer_a_demand() {
        let (mut book, mut views) = (Book::default(), [view("pv", Some(FETCHED))]);
        book.annotated("pv", Some(at(600)));
        assert!(book.due("pv", &views).is_some());
        let failed = FETCHED + 601_000;
        (views[0].last_attempt_ms, views[0].error) = (Some(failed), "it does not answer".into());
        views[0].set_state(fsd::State::Failing);
        assert!(book.due("pv", &views).is_none(), "the value has acted: the daemon tries again by itself");
        let mut restarted = Book::default();
        restarted.annotated("pv", Some(at(600)));
        assert!(restarted.due("pv", &views).is_some(), "that a fetch was tried does not count");
    }

    #[test]
    fn a_private_volume_that_waits_for_its_credential_takes_a_demand() {
        let (mut book, mut views) = (Book::default(), [view("pv", None)]);
        views[0].set_state(fsd::State::Waiting);
        book.annotated("pv", Some(at(1)));
        assert!(book.due("pv", &views).is_some(), "the daemon pulls when the next publish brings the credential");
        // It has fetched since.
        (views[0].last_success_ms, views[0].state) = (Some(FETCHED + 90_000), fsd::State::Ok.into());
        assert!(book.due("pv", &views).is_none());
        book.annotated("pv", Some(at(100)));
        assert!(book.due("pv", &views).is_some(), "the next value acts");
    }

    #[test]
    fn of_volumes_with_several_views_those_are_pulled_that_are_older() {
        let other = |url: &str, last| fsd::View { url: url.into(), ..view("pv", last) };
        let views = [
            other("https://b", Some(FETCHED)),
            other("https://a", None),
            other("https://c", Some(FETCHED + 90_000)),
            other("https://a", None),
        ];
        let mut book = Book::default();
        book.annotated("pv", Some(Demand { commit: Some("c".into()), ..at(1) }));
        let act = book.due("pv", &views).unwrap();
        assert_eq!((act.urls, act.commit.as_deref()), (vec!["https://a".to_owned(), "https://b".to_owned()], Some("c")));
    }

    #[test]
    fn volumes_that_are_gone_are_forgotten() {
        let mut book = Book::default();
        book.annotated("a", Some(at(1)));
        book.annotated("b", Some(at(1)));
        book.due("a", &[view("a", None)]);
        book.retain(&["b".to_owned()].into());
        assert!(book.due("a", &[view("a", None)]).is_none() && book.due("b", &[view("b", None)]).is_some());
        book.annotated("b", None);
        assert!(book.demands.is_empty() && book.decided.is_empty());
    }
}
