//! Goal: a state may stand for another one only if both can go on to the same places. Method: visit every state of small
//! worlds as it is, and compare where it leads with where its stand-in leads.

use std::collections::HashSet;

use stateright::Model;
use tenure_protocol::{Backend, Protocol, Size, State, Trouble};

fn check(size: Size, backend: Backend) {
    let mut raw = Protocol::new(size, backend, None);
    raw.symmetry = false;
    let mut seen: HashSet<State> = raw.init_states().into_iter().collect();
    let mut waiting: Vec<State> = seen.iter().copied().collect();
    let mut compared: HashSet<State> = HashSet::new();
    while let Some(state) = waiting.pop() {
        let stand_in = raw.canonical(&state);
        assert_eq!(raw.canonical(&stand_in), stand_in, "the stand-in of a stand-in is itself");
        compared.insert(stand_in);
        let ours = places(&raw, &state);
        let theirs = places(&raw, &stand_in);
        if ours != theirs {
            let only_ours: Vec<_> = ours.difference(&theirs).collect();
            let only_theirs: Vec<_> = theirs.difference(&ours).collect();
            panic!(
                "{state:?}\nstands as\n{stand_in:?}\nonly the state: {only_ours:#?}\nonly the stand-in: {only_theirs:#?}"
            );
        }
        waiting.extend(raw.next_states(&state).into_iter().filter(|next| seen.insert(*next)));
    }
    assert!(seen.len() > compared.len() * 2, "{} states, {} stand-ins", seen.len(), compared.len());
}

/// Where a state leads, itself included.
fn places(protocol: &Protocol, state: &State) -> HashSet<State> {
    let next = protocol.next_states(state).into_iter().chain([*state]);
    next.map(|next| protocol.canonical(&next)).collect()
}

fn size(epochs: u8, attempts: u8) -> Size {
    Size { replicas: 2, epochs, attempts, trouble: Trouble::NONE, troubles_at_once: 1 }
}

#[test]
fn stand_ins_go_where_the_others_go_with_trouble() {
    check(Size { trouble: Trouble::ANY, ..size(2, 1) }, Backend::Together);
}

#[test]
fn stand_ins_go_where_the_others_go_with_two_attempts() {
    check(size(1, 2), Backend::Together);
}

#[test]
fn stand_ins_go_where_the_others_go_with_leases_kept_elsewhere() {
    check(size(2, 1), Backend::Apart);
}
