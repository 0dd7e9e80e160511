//! What must hold for a thousand nodes.

use std::collections::HashMap;

use super::*;

const FLEET: Fleet = Fleet { nodes: 1000, volumes: 3, seed: 7 };

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_push_makes_one_fetch_a_node_at_once() {
    for volumes in [1, 3, 40] {
        let fleet = Fleet { volumes, ..FLEET };
        let weather = Weather::push(Duration::ZERO);
        let fetches = simulate(&fleet, &weather);
        assert_eq!(per_node(&fleet, &fetches, &(PUSH..weather.end)), (1, 1), "{volumes} volumes");
        let last = fetches.last().unwrap().start;
        assert!(last < PUSH + secs(1), "the last node began {:?} after the push", last - PUSH);
    }
}

#[test]
fn a_spread_push_makes_one_fetch_a_node_at_even_times() {
    let weather = Weather::push(secs(60));
    let fetches = simulate(&FLEET, &weather);
    assert_eq!(per_node(&FLEET, &fetches, &(PUSH..weather.end)), (1, 1));
    assert!(fetches.iter().all(|fetch| fetch.start < PUSH + secs(61)));
    let bars = per_second(&fetches, &(PUSH..PUSH + secs(60)));
    assert!(peak(&bars) <= FLEET.nodes * 4 / 100, "no second has more than 4 % of the nodes: {}", peak(&bars));
    for ten in bars[..60].chunks(10) {
        let share = ten.iter().map(|bar| bar.good).sum::<u32>();
        assert!((110..=225).contains(&share), "a sixth of the spread has about a sixth of the nodes: {share}");
    }
}

#[test]
fn a_second_push_within_the_interval_makes_one_more_fetch_at_its_end() {
    let weather = Weather::push(Duration::ZERO);
    let mut node = Node::new(0, &FLEET, &weather);
    for n in 1..=20 {
        let at = PUSH + Duration::from_millis(450 * n);
        let value = jiff::Timestamp::from_millisecond(wall(at).cast_signed()).unwrap().to_string();
        node.queue(at, Event::Marked(0, Annotation { value, commit: None }));
    }
    let starts: Vec<Duration> = node.run().into_iter().map(|fetch| fetch.start).filter(|start| *start >= PUSH).collect();
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert_eq!(starts[1] - starts[0], secs(10));
}

/// The waits of a node between a failed fetch and the next one, of the failures since the push.
fn waits(fetches: &[Fetch]) -> HashMap<u32, Vec<Duration>> {
    let mut by_node: HashMap<u32, Vec<Fetch>> = HashMap::new();
    for fetch in fetches.iter().filter(|fetch| fetch.start >= PUSH) {
        by_node.entry(fetch.node).or_default().push(*fetch);
    }
    let between = |fetches: Vec<Fetch>| fetches.windows(2).filter(|two| !two[0].worked).map(|two| two[1].start - two[0].end).collect();
    by_node.into_iter().map(|(node, fetches)| (node, between(fetches))).collect()
}

#[test]
fn after_an_outage_the_nodes_have_backed_off_and_are_not_in_step() {
    let weather = Weather::outage(Pull::OnDemand);
    let fetches = simulate(&FLEET, &weather);
    let waits = waits(&fetches);
    assert_eq!(waits.len(), 1000);
    for (node, waits) in &waits {
        for (wait, whole) in waits.iter().zip([10, 20, 40, 80, 160, 300, 300, 300, 300]) {
            let least = (secs(whole) / 2).max(secs(10));
            assert!((least..=secs(whole)).contains(wait), "node {node} waits {wait:?} of {whole} s: {waits:?}");
        }
    }
    // 10 + 20 + 40 + 80 + 160 + 300 s at most, and no less than 10 + 10 + 20 + 40 + 80 + 150 + 150 s.
    let (fewest, most) = per_node(&FLEET, &fetches, &weather.outage);
    assert!(fewest >= 6 && most <= 9, "{fewest} to {most} fetches of a node within the outage");

    let after = weather.outage.end..weather.end;
    assert_eq!(per_node(&FLEET, &fetches, &after), (1, 1), "each node is well again within five minutes, with one fetch");
    assert!(fetches.iter().all(|fetch| fetch.start < weather.outage.end + LONGEST));
    let most = peak(&per_second(&fetches, &after));
    assert!(most <= FLEET.nodes * 3 / 100, "no second has more than 3 % of the nodes: {most}");
    // What all drew alike would have come in step.
    let third: Vec<&Duration> = waits.values().map(|waits| &waits[2]).collect();
    assert!(**third.iter().max().unwrap() - **third.iter().min().unwrap() > secs(18));
}

#[test]
fn nodes_that_poll_are_not_in_step_either() {
    let weather = Weather::outage(Pull::Every(LONGEST));
    let fetches = simulate(&FLEET, &weather);
    let after = weather.outage.end..weather.end;
    let (fewest, _) = per_node(&FLEET, &fetches, &after);
    assert!(fewest >= 1);
    let most = peak(&per_second(&fetches, &after));
    assert!(most <= FLEET.nodes * 3 / 100, "no second has more than 3 % of the nodes: {most}");
}
