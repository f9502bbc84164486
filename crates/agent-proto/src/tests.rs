//! Goal: the wire loses nothing and lets no nonsense in. Method: random words of the model go over encoded bytes and
//! come back the same; damaged messages are refused with the name of the field.

use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};
use tenure_model::{
    Ack, Assignment, AttemptId, EmbeddedFile, FailReason, Held, HttpRequest, OnDisconnect, Outcome, Program,
    Report, ReportBody, Resources, RunKey, TaskNo, TiKey,
};
use uuid::Uuid;

use crate::{Nonsense, Refusal, Why, wire};

fn attempts() -> impl Strategy<Value = AttemptId> {
    (1..=u128::MAX).prop_map(|number| AttemptId(Uuid::from_u128(number)))
}

fn tis() -> impl Strategy<Value = TiKey> {
    (any::<i64>(), any::<u32>(), -1..=i32::MAX).prop_map(|(run, task, map_index)| TiKey {
        run: RunKey(run),
        task: TaskNo(task),
        map_index,
    })
}

fn names() -> impl Strategy<Value = String> {
    any::<String>().prop_filter("a name is not empty", |name| !name.is_empty())
}

fn durations() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos))
}

fn instants() -> impl Strategy<Value = Timestamp> {
    let (first, last) = (Timestamp::MIN.as_nanosecond(), Timestamp::MAX.as_nanosecond());
    (first..=last).prop_map(|nanos| Timestamp::from_nanosecond(nanos).unwrap())
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 20, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            btree_map(any::<String>(), inner, 0..5).prop_map(|fields| json!(fields))
        ]
    })
}

fn programs() -> impl Strategy<Value = Program> {
    let texts = || btree_map(any::<String>(), any::<String>(), 0..4);
    let request =
        (names(), names(), texts(), any::<Option<String>>(), vec(any::<u16>(), 0..4)).prop_map(|parts| {
            let (method, url, headers, body, expected_status) = parts;
            Program::Http { request: HttpRequest { method, url, headers, body, expected_status } }
        });
    prop_oneof![vec(any::<String>(), 0..5).prop_map(|argv| Program::Process { argv }), request]
}

prop_compose! {
    fn assignments()(
        (attempt, ti) in (attempts(), tis()),
        (node, scope, tenant, dag, run_id, task) in (names(), names(), names(), names(), names(), names()),
        (epoch, try_number) in any::<(u64, u32)>(),
        program in programs(),
        env in btree_map(any::<String>(), any::<String>(), 0..4),
        files in btree_map(any::<String>(), any::<(String, bool)>(), 0..4),
        timeout in proptest::option::of(durations()),
        grace in durations(),
        secrets in vec(any::<String>(), 0..3),
        (resources, run_as, stop) in
            (btree_map(any::<String>(), any::<u64>(), 0..3), proptest::option::of(names()), any::<bool>()),
    ) -> Assignment {
        let files = files.into_iter().map(|(name, (content, executable))| {
            (name, EmbeddedFile { content, executable })
        });
        Assignment {
            attempt, ti, node: node.into(), scope, epoch, tenant: tenant.into(), dag: dag.into(),
            run_id: run_id.into(), task: task.into(), try_number, program, env, files: files.collect(),
            timeout, grace, secrets, resources: Resources(resources), run_as,
            on_disconnect: if stop { OnDisconnect::Stop } else { OnDisconnect::Continue },
        }
    }
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let reason = prop_oneof![
        any::<i32>().prop_map(|code| FailReason::Exit { code }),
        any::<String>().prop_map(|name| FailReason::Signal { name }),
        any::<u64>().prop_map(|after_ms| FailReason::TimedOut { after_ms }),
        Just(FailReason::Stopped),
        any::<u64>().prop_map(|limit_bytes| FailReason::OutOfMemory { limit_bytes }),
        any::<u64>().prop_map(|silent_ms| FailReason::CutOff { silent_ms }),
        Just(FailReason::Lost),
        any::<u64>().prop_map(|silent_ms| FailReason::AgentLost { silent_ms }),
        any::<String>().prop_map(|error| FailReason::CannotStart { error }),
        any::<String>().prop_map(|error| FailReason::BadResult { error }),
    ];
    prop_oneof![
        Just(Outcome::Success),
        Just(Outcome::Skipped),
        Just(Outcome::NeverStarted),
        reason.prop_map(|reason| Outcome::Failed { reason })
    ]
}

fn reports() -> impl Strategy<Value = Report> {
    let end = (outcomes(), instants(), proptest::option::of(values()));
    (attempts(), tis(), names(), names(), proptest::option::of(end)).prop_map(
        |(attempt, ti, node, scope, end)| {
            let body = match end {
                None => ReportBody::Claim { attempt, ti },
                Some((outcome, ended_at, result)) => {
                    ReportBody::End { attempt, ti, outcome, ended_at, result }
                }
            };
            Report { node: node.into(), scope, body }
        },
    )
}

fn refusals() -> impl Strategy<Value = Refusal> {
    let why = prop_oneof![
        any::<u64>().prop_map(|highest| Why::StaleEpoch { highest }),
        any::<String>().prop_map(|reason| Why::NotTaken { reason }),
        any::<String>().prop_map(|reason| Why::Unreadable { reason }),
    ];
    (attempts(), tis(), names(), why).prop_map(|(attempt, ti, scope, why)| Refusal {
        attempt,
        ti,
        scope,
        why,
    })
}

/// Over the wire, as bytes.
fn sent<M: Message + Default>(message: M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

proptest! {
    #[test]
    fn an_assignment_arrives_as_it_was_sent(assignment in assignments()) {
        let arrived = sent(wire::Assignment::from(assignment.clone()));
        prop_assert_eq!(Assignment::try_from(arrived), Ok(assignment));
    }

    #[test]
    fn a_report_arrives_as_it_was_sent(report in reports(), number: u64) {
        let arrived = sent(wire::NumberedReport::new(number, report.clone()));
        prop_assert_eq!(arrived.number, number);
        prop_assert_eq!(arrived.read(report.node.clone()), Ok(report));
    }

    #[test]
    fn an_inventory_and_a_refusal_arrive_as_they_were_sent(
        attempt in attempts(), ti in tis(), scope in names(), refusal in refusals(),
    ) {
        let held = Held { attempt, ti, scope };
        prop_assert_eq!(Held::try_from(sent(wire::Held::from(held.clone()))), Ok(held));
        prop_assert_eq!(Refusal::try_from(sent(wire::Refusal::from(refusal.clone()))), Ok(refusal));
    }

    #[test]
    fn every_answer_keeps_the_number_of_its_report(numbers in vec((any::<u64>(), 0..3u8), 0..50)) {
        let kinds = [Ack::Accepted, Ack::Superseded, Ack::Retry];
        let mut given: Vec<(u64, Ack)> =
            numbers.into_iter().map(|(number, kind)| (number, kinds[usize::from(kind)])).collect();
        let mut message = wire::ToAgent::default();
        given.iter().for_each(|(number, ack)| message.add_ack(*number, *ack));
        let mut arrived: Vec<(u64, Ack)> = sent(message).acks().collect();
        given.sort_by_key(|(number, ack)| (*number, *ack as u8));
        arrived.sort_by_key(|(number, ack)| (*number, *ack as u8));
        prop_assert_eq!(arrived, given);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = wire::ToAgent::decode(bytes.as_slice()) {
            for assignment in message.assignments {
                let _ = Assignment::try_from(assignment);
            }
        }
        if let Ok(message) = wire::FromAgent::decode(bytes.as_slice()) {
            for report in message.reports {
                let _ = report.read("n".into());
            }
        }
    }
}

fn sample() -> wire::Assignment {
    wire::Assignment {
        attempt: Some(wire::Id { high: 1, low: 2 }),
        ti: Some(wire::TaskInstance { run: 1, task: 2, map_index: -1 }),
        node: "n".into(),
        scope: "scheduler/shard-00".into(),
        tenant: "default".into(),
        dag: "d".into(),
        run_id: "r".into(),
        task: "t".into(),
        program: Some(wire::assignment::Program::Process(wire::Process::default())),
        grace: Some(wire::Span::default()),
        ..Default::default()
    }
}

#[test]
fn nonsense_in_an_assignment_is_refused_with_the_name_of_the_field() {
    assert!(Assignment::try_from(sample()).is_ok());
    type Spoil = fn(&mut wire::Assignment);
    let spoil: [(&str, Spoil); 12] = [
        ("attempt", |it| it.attempt = None),
        ("attempt", |it| it.attempt = Some(wire::Id::default())),
        ("ti", |it| it.ti = None),
        ("ti.map_index", |it| it.ti.as_mut().unwrap().map_index = -2),
        ("node", |it| it.node.clear()),
        ("scope", |it| it.scope.clear()),
        ("tenant", |it| it.tenant.clear()),
        ("run_id", |it| it.run_id.clear()),
        ("program", |it| it.program = None),
        ("grace", |it| it.grace = None),
        ("timeout", |it| it.timeout = Some(wire::Span { seconds: 0, nanos: 1_000_000_000 })),
        ("http.expected_status", |it| {
            let request = wire::HttpRequest {
                method: "GET".into(),
                url: "http://x".into(),
                expected_status: vec![70_000],
                ..Default::default()
            };
            it.program = Some(wire::assignment::Program::Http(request));
        }),
    ];
    for (field, spoil) in spoil {
        let mut assignment = sample();
        spoil(&mut assignment);
        let error = Assignment::try_from(assignment).unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn nonsense_in_a_report_is_refused_with_the_name_of_the_field() {
    let end = |end: wire::End| wire::NumberedReport {
        number: 1,
        attempt: Some(wire::Id { high: 1, low: 2 }),
        ti: Some(wire::TaskInstance::default()),
        scope: "s".into(),
        body: Some(wire::numbered_report::Body::End(end)),
    };
    let good = wire::End {
        ended_at: Some(wire::Instant::default()),
        outcome: Some(wire::end::Outcome::Success(wire::Nothing {})),
        result_json: None,
    };
    let field =
        |report: wire::NumberedReport| report.read("n".into()).map_err(|Nonsense { field, .. }| field);
    assert!(field(end(good.clone())).is_ok());
    assert_eq!(field(wire::NumberedReport { body: None, ..end(good.clone()) }), Err("body"));
    assert_eq!(field(wire::NumberedReport { scope: String::new(), ..end(good.clone()) }), Err("scope"));
    assert_eq!(field(end(wire::End { outcome: None, ..good.clone() })), Err("end.outcome"));
    assert_eq!(field(end(wire::End { ended_at: None, ..good.clone() })), Err("end.ended_at"));
    let beyond_time = Some(wire::Instant { seconds: i64::MAX, nanos: 0 });
    assert_eq!(field(end(wire::End { ended_at: beyond_time, ..good.clone() })), Err("end.ended_at"));
    assert_eq!(field(end(wire::End { result_json: Some("{".into()), ..good })), Err("end.result_json"));
}
