//! What would become of a request, as data: who could take it and what speaks for each, who could not and why.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_model::NodeId;

use crate::catalog::Entry;
use crate::cluster::{Choice, Cluster, Reach};
use crate::filter::{self, Rejection};
use crate::reasons::Unplaceable;
use crate::score::ScoreParts;
use crate::{History, Node, Request};

/// Every node is in it once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The best first: that is where it would go. None: it would wait.
    pub candidates: Vec<Candidate>,
    /// By name.
    pub rejected: Vec<Rejected>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub node: NodeId,
    pub score: i64,
    pub parts: ScoreParts,
    /// Of everything that the node has or the request asks for.
    pub uses: BTreeMap<String, Use>,
}

/// How much of a resource is taken, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    pub capacity: u64,
    pub before: u64,
    pub after: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    pub node: NodeId,
    /// All of them, those that last longest first.
    pub reasons: Vec<Rejection>,
}

impl Explanation {
    /// Why it would have to wait.
    pub fn refusal(&self) -> Option<Unplaceable> {
        self.candidates.is_empty().then(|| Unplaceable { rejected: self.rejected.clone() })
    }
}

impl Cluster {
    /// What `place` would do, and why.
    pub fn explain(&self, request: &Request, history: &History) -> Explanation {
        self.explained(request, history, Reach::Own)
    }

    /// Why the request would have to wait even if this scheduler had all that is to be had.
    pub fn refusal(&self, request: &Request) -> Option<Unplaceable> {
        match self.has_room_for(request, Reach::More) {
            true => None,
            false => self.explained(request, &History::default(), Reach::More).refusal(),
        }
    }

    pub(crate) fn explained(&self, request: &Request, history: &History, reach: Reach) -> Explanation {
        let prospects = self.catalog().prospects(request);
        let crowds = self.crowds(request, &prospects);
        let traces = self.traces(history);
        let (mut choices, mut rejected) = (vec![], vec![]);
        // In the same order as the nodes, without those that are out of the question.
        let mut hopeful = prospects.nodes.iter().peekable();
        for (entry, Entry { id, node, .. }) in self.catalog().entries().iter().enumerate() {
            let lasting = filter::lasting(node, request);
            let reasons: Vec<Rejection> = lasting.chain(self.busy(entry, request, reach)).collect();
            match hopeful.next_if(|prospect| prospect.entry == entry) {
                Some(prospect) if reasons.is_empty() => choices.push(self.judge(prospect, &crowds, &traces)),
                _ => rejected.push(Rejected { node: id.clone(), reasons }),
            }
        }
        choices.sort_by_key(|choice| self.order(choice));
        let candidate = |choice: &Choice| {
            let Entry { id, node, .. } = &self.catalog().entries()[choice.entry];
            Candidate {
                node: id.clone(),
                score: choice.parts.total(),
                parts: choice.parts,
                uses: self.uses(node, id, request),
            }
        };
        Explanation { candidates: choices.iter().map(candidate).collect(), rejected }
    }

    fn uses(&self, node: &Node, id: &NodeId, request: &Request) -> BTreeMap<String, Use> {
        let reserved = self.reserved(id).unwrap_or_default();
        let names = node.capacity.0.keys().chain(request.resources.0.keys());
        let one = |name: &String| {
            let before = reserved.get(name);
            let after = before + request.resources.get(name);
            (name.clone(), Use { capacity: node.capacity.get(name), before, after })
        };
        names.map(one).collect()
    }
}
