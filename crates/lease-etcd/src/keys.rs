//! Where things lie in etcd. Of `<prefix>` and a scope:
//!
//! - `<prefix><scope>`: the lease while somebody holds it, attached to an etcd lease;
//! - `<prefix>.terms/<scope>`: the latest term, held or not;
//! - `<prefix>.history/<scope>#<number>`: the latest terms, one key for each, so that a takeover writes a
//!   few hundred bytes however long the history is;
//! - `<prefix>.fences/<scope>`: the scope's epoch, where no other database mints it;
//! - `<prefix>.renewals/<session>`: when a holder's process last renewed, attached to an etcd lease.
//!
//! So no scope may begin with a dot or hold a `#`.

use tenure_lease::{HISTORY, LeaseError, Scope, Session, Term};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

/// From the first key, up to and without the second.
pub(crate) type KeyRange = (Vec<u8>, Vec<u8>);

impl Keys {
    pub(crate) fn under(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// A scope whose keys meet nobody else's.
    pub(crate) fn check(&self, scope: &Scope) -> Result<(), LeaseError> {
        let name = scope.as_str();
        if name.is_empty() || name.starts_with('.') || name.contains('#') {
            let rule = "in etcd a scope must not be empty, begin with a dot or hold a #";
            return Err(LeaseError::Refused(format!("{name:?} cannot be a scope: {rule}")));
        }
        Ok(())
    }

    pub(crate) fn lease(&self, scope: &Scope) -> Vec<u8> {
        format!("{}{scope}", self.prefix).into()
    }

    pub(crate) fn latest(&self, scope: &Scope) -> Vec<u8> {
        format!("{}.terms/{scope}", self.prefix).into()
    }

    pub(crate) fn fence(&self, scope: &Scope) -> Vec<u8> {
        format!("{}.fences/{scope}", self.prefix).into()
    }

    pub(crate) fn renewal(&self, session: Session) -> Vec<u8> {
        format!("{}.renewals/{session}", self.prefix).into()
    }

    /// Twenty digits hold every number, and sort as numbers do.
    pub(crate) fn past(&self, scope: &Scope, number: u64) -> Vec<u8> {
        format!("{}.history/{scope}#{number:020}", self.prefix).into()
    }

    /// The term that falls out of the history when this one comes in.
    pub(crate) fn forgotten(&self, scope: &Scope, number: u64) -> Option<Vec<u8>> {
        number.checked_sub(HISTORY as u64).map(|old| self.past(scope, old))
    }

    pub(crate) fn history(&self, scope: &Scope) -> KeyRange {
        all_that_begin_with(format!("{}.history/{scope}#", self.prefix).into())
    }

    /// Leases whose scope begins with `under`. Two ranges, with everything that begins with a dot between them.
    pub(crate) fn leases(&self, under: &str) -> Vec<KeyRange> {
        let whole = all_that_begin_with(format!("{}{under}", self.prefix).into());
        match under.chars().next() {
            None => {
                let dot = all_that_begin_with(format!("{}.", self.prefix).into());
                vec![(whole.0, dot.0), (dot.1, whole.1)]
            }
            Some('.') => vec![],
            Some(_) => vec![whole],
        }
    }

    pub(crate) fn latest_terms(&self, under: &str) -> KeyRange {
        all_that_begin_with(format!("{}.terms/{under}", self.prefix).into())
    }

    pub(crate) fn renewals(&self) -> KeyRange {
        all_that_begin_with(format!("{}.renewals/", self.prefix).into())
    }

    pub(crate) fn everything(&self) -> KeyRange {
        all_that_begin_with(self.prefix.clone().into())
    }

    /// The scope of a lease's key; `None` for all other keys.
    pub(crate) fn scope_of_lease(&self, key: &[u8]) -> Option<Scope> {
        let scope = Scope::new(std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?);
        self.check(&scope).is_ok().then_some(scope)
    }

    pub(crate) fn scope_of_latest(&self, key: &[u8]) -> Option<Scope> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix(".terms/")?;
        Some(Scope::new(name))
    }

    /// The etcd lease of a term is known beforehand: whoever asks again after a lost answer finds the one it
    /// was granted, and no lease is left behind.
    pub(crate) fn etcd_lease(&self, scope: &Scope, term: Term, seconds: i64) -> i64 {
        etcd_lease_named(&term.0, &[&self.lease(scope)[..], &seconds.to_be_bytes()].concat())
    }

    /// Of a session's renewal mark.
    pub(crate) fn etcd_lease_of_renewal(&self, session: Session) -> i64 {
        etcd_lease_named(&session.0, &self.renewal(session))
    }
}

/// Positive, because zero asks etcd to choose one; 60 bits of a hash, so that no two ever meet.
fn etcd_lease_named(namespace: &Uuid, name: &[u8]) -> i64 {
    let (high, _) = Uuid::new_v5(namespace, name).as_u64_pair();
    // A version stands in bits 12 to 15: they are the same in all names and are left out.
    let random = (high >> 16 << 12) | (high & 0xfff);
    (random as i64 & i64::MAX).max(1)
}

/// etcd's range end: the prefix with its last byte that can grow grown by one.
fn all_that_begin_with(prefix: Vec<u8>) -> KeyRange {
    let mut end = prefix.clone();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (prefix, end);
        }
    }
    // Everything to the end of all keys.
    (prefix, vec![0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within((start, end): &KeyRange, key: &[u8]) -> bool {
        start.as_slice() <= key && key < end.as_slice()
    }

    #[test]
    fn leases_lie_exactly_where_an_operator_looks() {
        let keys = Keys::under("/lcm/");
        assert_eq!(keys.lease(&Scope::new("scheduler/leader")), b"/lcm/scheduler/leader");
        assert_eq!(keys.latest(&Scope::new("a/b")), b"/lcm/.terms/a/b");
        assert_eq!(keys.scope_of_lease(b"/lcm/a/b"), Some(Scope::new("a/b")));
        assert_eq!(keys.scope_of_lease(b"/lcm/.terms/a/b"), None);
        assert_eq!(keys.scope_of_lease(b"/other/a"), None);
    }

    #[test]
    fn a_listing_of_leases_meets_no_other_keys() {
        let keys = Keys::under("/lcm/");
        let ranges = keys.leases("");
        let listed = |key: &[u8]| ranges.iter().any(|range| within(range, key));
        let scope = Scope::new("a");
        assert!(listed(b"/lcm/a") && listed(b"/lcm/-") && listed(b"/lcm/\xe6") && listed(b"/lcm/0"));
        assert!(
            !listed(&keys.latest(&scope)) && !listed(&keys.past(&scope, 1)) && !listed(&keys.fence(&scope))
        );
        assert!(!listed(b"/lcn") && !listed(b"/lcl"));
    }

    #[test]
    fn the_histories_of_nested_scopes_are_apart() {
        let keys = Keys::under("/t/");
        let history = keys.history(&Scope::new("a"));
        assert!(within(&history, &keys.past(&Scope::new("a"), 7)));
        assert!(!within(&history, &keys.past(&Scope::new("a/b"), 7)));
        assert!(!within(&history, &keys.past(&Scope::new("ab"), 7)));
    }

    #[test]
    fn every_term_of_every_scope_has_an_etcd_lease_of_its_own() {
        let (keys, other) = (Keys::under("/t/"), Keys::under("/u/"));
        let (scope, term) = (Scope::new("a"), Term(Uuid::from_u128(1)));
        let one = keys.etcd_lease(&scope, term, 2);
        assert_eq!(one, keys.etcd_lease(&scope, term, 2), "asked again, it is the same");
        assert!(one > 0);
        for different in [
            keys.etcd_lease(&Scope::new("b"), term, 2),
            keys.etcd_lease(&scope, Term(Uuid::from_u128(2)), 2),
            keys.etcd_lease(&scope, term, 3),
            other.etcd_lease(&scope, term, 2),
        ] {
            assert_ne!(one, different);
        }
    }

    #[test]
    fn scopes_that_would_meet_other_keys_are_refused() {
        for name in ["", ".terms/a", ".x", "a#1"] {
            assert!(Keys::under("/t/").check(&Scope::new(name)).is_err(), "{name:?}");
        }
    }
}
