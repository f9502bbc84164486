//! etcd's messages, as generated, and short ways to write them.

pub(crate) use generated::*;

#[allow(missing_debug_implementations, clippy::all, reason = "generated code")]
mod generated {
    tonic::include_proto!("etcdserverpb");
}

use compare::{CompareTarget, TargetUnion};
use request_op::Request;
use response_op::Response;

use crate::keys::KeyRange;

pub(crate) fn get(key: Vec<u8>) -> RequestOp {
    operation(Request::RequestRange(RangeRequest { key, ..RangeRequest::default() }))
}

pub(crate) fn range((key, range_end): KeyRange) -> RangeRequest {
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

pub(crate) fn read_range(range: RangeRequest) -> RequestOp {
    operation(Request::RequestRange(range))
}

/// With `lease` zero the key stays until it is deleted.
pub(crate) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    operation(Request::RequestPut(PutRequest { key, value, lease }))
}

pub(crate) fn delete(key: Vec<u8>) -> RequestOp {
    operation(Request::RequestDeleteRange(DeleteRangeRequest { key }))
}

/// A transaction inside another one: it has a result of its own.
pub(crate) fn nested(txn: TxnRequest) -> RequestOp {
    operation(Request::RequestTxn(txn))
}

fn operation(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The key has not changed since it was read; revision zero means that it was not there.
pub(crate) fn unchanged(key: Vec<u8>, revision: i64) -> Compare {
    let (target, union) = match revision {
        0 => (CompareTarget::Create, TargetUnion::CreateRevision(0)),
        revision => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
    };
    Compare { target: target.into(), key, target_union: Some(union), ..Compare::default() }
}

pub(crate) fn reading(operations: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success: operations, ..TxnRequest::default() }
}

impl TxnResponse {
    /// What was read, operation by operation; nothing for those that wrote.
    pub(crate) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().map(|answer| match answer.response {
            Some(Response::ResponseRange(range)) => range,
            _ => RangeResponse::default(),
        })
    }

    /// Of nested transactions, one by one.
    pub(crate) fn successes(self) -> impl Iterator<Item = bool> {
        self.responses
            .into_iter()
            .map(|answer| matches!(answer.response, Some(Response::ResponseTxn(inner)) if inner.succeeded))
    }

    pub(crate) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }
}
