//! Goal: afterwards everyone can read who held a scope, and how each term ended.

use tenure_lease::{HISTORY, LeaseRecord, PastTerm, Succession, Takeover};

use crate::Fresh;
use crate::harness::Office;

async fn past(office: &Office, limit: usize) -> Vec<PastTerm> {
    office.leases().lease_history(&office.scope, limit).await.expect("answered")
}

pub async fn a_history_says_how_each_term_began_and_ended(fresh: Fresh) {
    use Succession::{Crashed, Expired, First, Released, Stalled};
    let office = Office::of(fresh);
    let mut terms: Vec<LeaseRecord> = vec![];

    let given_back = office.taken("a").await;
    let line = past(&office, 1).await.remove(0);
    assert_eq!((line.end, line.ended_at), (None, None), "it is held");
    office.release(&given_back).await;
    let line = past(&office, 1).await.remove(0);
    assert_eq!(line.end, Some(Released), "as soon as it is given back");
    assert!(line.ended_at.is_some(), "{line:?}");

    terms.push(given_back);
    terms.push(office.taken_and_expired("b").await);
    terms.push(office.taken("c").await);
    let dead = Takeover::OfDead(terms[2].term);
    terms.push(office.granted(&office.taking("d", dead)).await);
    let seen = office.shown().await;
    let stalled = Takeover::OfStalled { term: seen.term, resource_version: seen.resource_version };
    terms.push(office.granted(&office.taking("e", stalled)).await);

    let history = past(&office, 10).await;
    let story: Vec<_> =
        history.iter().map(|line| (line.holder.name.as_str(), line.succession, line.end)).collect();
    assert_eq!(
        story,
        [
            ("e", Stalled, None),
            ("d", Crashed, Some(Stalled)),
            ("c", Expired, Some(Crashed)),
            ("b", Released, Some(Expired)),
            ("a", First, Some(Released)),
        ]
    );
    for (line, record) in history.iter().zip(terms.iter().rev()) {
        assert_eq!((line.epoch, line.term, &line.scope), (record.epoch, record.term, &record.scope));
        assert_eq!((&line.holder, &line.note), (&record.holder, &record.note));
        assert_eq!(line.succession, record.succession);
        assert_eq!(line.acquired_at, record.acquired_at);
        assert_eq!(line.ended_at.is_some(), line.end.is_some(), "{line:?}");
        assert!(line.ended_at.is_none_or(|ended| ended >= line.acquired_at), "{line:?}");
    }
}

pub async fn a_history_is_as_long_as_asked_and_no_longer_than_promised(fresh: Fresh) {
    let office = Office::of(fresh);
    let mut epochs = vec![];
    for _ in 0..HISTORY + 10 {
        let record = office.taken("a").await;
        office.release(&record).await;
        epochs.push(record.epoch);
    }
    epochs.reverse();
    for limit in [0, 1, 3, HISTORY] {
        let shown: Vec<_> = past(&office, limit).await.into_iter().map(|line| line.epoch).collect();
        assert_eq!(shown, epochs[..limit], "the latest {limit}, newest first");
    }
    let everything = past(&office, usize::MAX).await.len();
    assert!((HISTORY..=epochs.len()).contains(&everything), "{everything} lines");
}

pub async fn a_scope_without_a_past_has_no_history(fresh: Fresh) {
    let office = Office::of(fresh);
    office.at("tests/other").taken("a").await;
    assert_eq!(past(&office, 10).await, vec![]);
}
