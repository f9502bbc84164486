//! Goal: listings say what is there: filtered as asked, in a stable order, page by page without overlap.

use serde_json::Value;
use tenure_model::{DagId, NewRun, RunState, RunType, TaskKind, TaskSpec, TaskState, TenantId, TiKey};
use tenure_store::{AuditQuery, DagQuery, DagRegistration, Paging, RunQuery, TiQuery, TryRecord};

use crate::Fresh;
use crate::harness::{
    World, assert_conflict, day_of_january, due_run, key_of, new_run, page, pass_of, registration, spec,
    tenant, ti, user,
};

fn dags() -> DagQuery {
    DagQuery {
        tenant: tenant(),
        id_pattern: None,
        tags: vec![],
        owners: vec![],
        paused: None,
        paging: Paging::default(),
    }
}

async fn dag_ids(world: &World, query: DagQuery) -> Vec<String> {
    let page = world.store.list_dags(&query).await.expect("listed");
    page.items.iter().map(|dag| dag.dag.to_string()).collect()
}

pub async fn dags_are_filtered_ordered_and_paged(fresh: Fresh) {
    let world = World::of(fresh);
    for (name, tags, owner, paused_if_new) in [
        ("orders", &["sales", "daily"][..], "ada", false),
        ("Invoices", &["sales"], "bob", true),
        ("stock_50%", &[], "ada", false),
    ] {
        let mut spec = spec(name, "a");
        spec.tags = tags.iter().map(ToString::to_string).collect();
        spec.owner = owner.into();
        let request = DagRegistration { paused_if_new, ..registration(&spec) };
        world.store.register_dag(&request).await.expect("registered");
    }
    let pattern = |text: &str| DagQuery { id_pattern: Some(text.into()), ..dags() };
    let tagged = |tags: &[&str]| DagQuery { tags: tags.iter().map(ToString::to_string).collect(), ..dags() };
    assert_eq!(dag_ids(&world, dags()).await, ["Invoices", "orders", "stock_50%"]);
    assert_eq!(
        dag_ids(&world, pattern("%O%")).await,
        ["Invoices", "orders", "stock_50%"],
        "case does not count"
    );
    assert_eq!(dag_ids(&world, pattern("inv%")).await, ["Invoices"]);
    assert_eq!(dag_ids(&world, pattern("orders")).await, ["orders"]);
    assert_eq!(dag_ids(&world, tagged(&["sales"])).await, ["Invoices", "orders"]);
    assert_eq!(dag_ids(&world, tagged(&["daily", "nightly"])).await, ["orders"], "any of them");
    let owned = DagQuery { owners: vec!["ada".into()], ..dags() };
    assert_eq!(dag_ids(&world, owned).await, ["orders", "stock_50%"]);
    assert_eq!(dag_ids(&world, DagQuery { paused: Some(true), ..dags() }).await, ["Invoices"]);
    assert_eq!(dag_ids(&world, DagQuery { paging: page(9, 0, "-dag_id"), ..dags() }).await[0], "stock_50%");
    assert_eq!(dag_ids(&world, DagQuery { paging: page(9, 0, "-is_paused"), ..dags() }).await[0], "Invoices");
    assert_eq!(dag_ids(&world, DagQuery { paging: page(9, 0, "next_run_at"), ..dags() }).await.len(), 3);
    let second = world.store.list_dags(&DagQuery { paging: page(1, 1, ""), ..dags() }).await.expect("listed");
    assert_eq!((second.items[0].dag.as_str(), second.items.len(), second.total), ("orders", 1, 3));
}

pub async fn versions_are_listed_newest_first(fresh: Fresh) {
    let world = World::of(fresh);
    for tasks in ["a", "a b", "a b c"] {
        world.register(&spec("etl", tasks)).await;
    }
    let list = |paging| {
        let store = world.store.clone();
        async move { store.list_versions(&tenant(), &"etl".into(), &paging).await.expect("listed") }
    };
    let all = list(Paging::default()).await;
    assert_eq!(
        (all.items.iter().map(|version| version.version).collect::<Vec<_>>(), all.total),
        (vec![3, 2, 1], 3)
    );
    let last = list(page(1, 2, "")).await;
    assert_eq!((last.items.len(), last.items[0].version, last.total), (1, 1, 3));
    let one = world.store.get_version(&tenant(), &"etl".into(), Some(2)).await.expect("read").expect("there");
    assert_eq!(one, all.items[1]);
}

/// Two dags; `etl` has days 1–4 (1 success, 2 failed, 3 running, 4 queued) and a manual run.
async fn some_runs(world: &World) {
    world.register(&spec("etl", "a b")).await;
    world.register(&spec("other", "a")).await;
    let owner = world.owner_of("etl").await;
    for (day, moves) in [
        (1, "a=success b=success run=success"),
        (2, "a=failed b=success run=failed"),
        (3, "a=running run=running"),
        (4, ""),
    ] {
        let run = world.create(&due_run("etl", day)).await;
        if moves.contains("run=") {
            if moves.contains("run=success") || moves.contains("run=failed") {
                world.drive(&owner, run.key, "run=running").await;
            }
            world.drive(&owner, run.key, moves).await;
        }
    }
    world.create(&new_run("etl", "by_hand")).await;
    world.create(&new_run("other", "elsewhere")).await;
}

async fn run_ids(world: &World, query: RunQuery) -> Vec<String> {
    let page = world.store.list_runs(&query).await.expect("listed");
    assert!(page.items.len() as u64 <= page.total);
    let short =
        |id: &str| id.strip_prefix("scheduled__2026-01-").map_or(id.to_owned(), |rest| rest[..2].to_owned());
    page.items.iter().map(|run| short(run.run_id.as_str())).collect()
}

pub async fn runs_are_filtered(fresh: Fresh) {
    let world = World::of(fresh);
    some_runs(&world).await;
    let of = || RunQuery::of(tenant(), Some("etl".into()));
    assert_eq!(run_ids(&world, of()).await, ["01", "02", "03", "04", "by_hand"], "in order of creation");
    assert_eq!(run_ids(&world, RunQuery::of(tenant(), None)).await.len(), 6);
    let finished = RunQuery { states: vec![RunState::Success, RunState::Failed], ..of() };
    assert_eq!(run_ids(&world, finished).await, ["01", "02"]);
    assert_eq!(run_ids(&world, RunQuery { run_types: vec![RunType::Manual], ..of() }).await, ["by_hand"]);
    let pattern = RunQuery { run_id_pattern: Some("BY_%".into()), ..of() };
    assert_eq!(run_ids(&world, pattern).await, ["by_hand"], "case does not count");
    let (two, three) = (Some(day_of_january(2)), Some(day_of_january(3)));
    let dates = RunQuery { logical_date_gte: two, logical_date_lte: three, ..of() };
    assert_eq!(run_ids(&world, dates).await, ["02", "03"]);
    let after = RunQuery { run_after_gte: three, run_after_lte: Some(day_of_january(4)), ..of() };
    assert_eq!(run_ids(&world, after).await, ["03", "04"]);
    let view = |id: String| {
        let store = world.store.clone();
        async move { store.get_run(&tenant(), &"etl".into(), &id.into()).await.expect("read").expect("there") }
    };
    let first = view(due_run("etl", 1).run_id.to_string()).await;
    let started = RunQuery { started_at_lte: first.started_at, ..of() };
    assert_eq!(run_ids(&world, started).await, ["01"]);
    let started = RunQuery { started_at_gte: first.started_at, ..of() };
    assert_eq!(run_ids(&world, started).await, ["01", "02", "03"]);
    let ended = RunQuery { ended_at_gte: first.ended_at, ended_at_lte: first.ended_at, ..of() };
    assert_eq!(run_ids(&world, ended).await, ["01"]);
}

pub async fn runs_are_ordered_and_paged(fresh: Fresh) {
    let world = World::of(fresh);
    some_runs(&world).await;
    let by =
        |order: &str| RunQuery { paging: page(9, 0, order), ..RunQuery::of(tenant(), Some("etl".into())) };
    assert_eq!(run_ids(&world, by("-id")).await, ["by_hand", "04", "03", "02", "01"]);
    assert_eq!(run_ids(&world, by("-logical_date")).await[..], ["04", "03", "02", "01", "by_hand"][..]);
    assert_eq!(run_ids(&world, by("run_after")).await, ["01", "02", "03", "04", "by_hand"]);
    assert_eq!(run_ids(&world, by("run_id")).await[0], "by_hand");
    assert_eq!(run_ids(&world, by("state")).await, ["02", "04", "by_hand", "03", "01"], "ties by creation");
    for order in ["dag_id", "start_date", "-end_date", "queued_at"] {
        assert_eq!(run_ids(&world, by(order)).await.len(), 5, "{order}");
    }
    for order in ["", "state", "-state", "-start_date", "logical_date"] {
        let mut pages = vec![];
        for offset in (0..6).step_by(2) {
            pages.extend(run_ids(&world, RunQuery { paging: page(2, offset, order), ..by("") }).await);
        }
        assert_eq!(pages, run_ids(&world, by(order)).await, "pages by {order:?} do not overlap");
    }
    let beyond =
        world.store.list_runs(&RunQuery { paging: page(5, 50, ""), ..by("") }).await.expect("listed");
    assert_eq!((beyond.items.len(), beyond.total), (0, 5));
}

pub async fn task_instances_are_filtered_ordered_and_paged(fresh: Fresh) {
    let world = World::of(fresh);
    let mut pooled = spec("etl", "b a");
    pooled.tasks.push(TaskSpec { pool: "gpu".into(), ..TaskSpec::new("c", TaskKind::Empty) });
    world.register(&pooled).await;
    let run = world.trigger("etl", "r1").await;
    world.trigger("etl", "r2").await;
    let owner = world.owner_of("etl").await;
    let snapshot = world.drive(&owner, run.key, "run=running a=success b=running").await;
    let of = || TiQuery::of_run(tenant(), "etl".into(), "r1".into());
    let list = |query: TiQuery| {
        let store = world.store.clone();
        async move {
            let page = store.list_tis(&query).await.expect("listed");
            let text: Vec<_> =
                page.items.iter().map(|view| format!("{}.{}", view.run_id, view.task_id)).collect();
            (text.join(" "), page.total)
        }
    };
    assert_eq!(list(of()).await, ("r1.b r1.a r1.c".into(), 3));
    assert_eq!(list(TiQuery { paging: page(9, 0, "task_id"), ..of() }).await.0, "r1.a r1.b r1.c");
    assert_eq!(list(TiQuery { paging: page(9, 0, "-id"), ..of() }).await.0, "r1.c r1.a r1.b");
    assert_eq!(list(TiQuery { paging: page(9, 0, "state"), ..of() }).await.0, "r1.c r1.b r1.a");
    for order in ["start_date", "-end_date"] {
        assert_eq!(list(TiQuery { paging: page(9, 0, order), ..of() }).await.1, 3);
    }
    assert_eq!(list(TiQuery { states: vec![TaskState::None], ..of() }).await.0, "r1.c");
    let states = vec![TaskState::Running, TaskState::Success];
    assert_eq!(list(TiQuery { states, ..of() }).await.0, "r1.b r1.a");
    assert_eq!(list(TiQuery { pools: vec!["gpu".into()], ..of() }).await.0, "r1.c");
    assert_eq!(list(TiQuery { map_index: Some(0), ..of() }).await.1, 0);
    let everywhere = TiQuery { dag: None, run: None, task: Some("a".into()), ..of() };
    assert_eq!(list(everywhere).await, ("r1.a r2.a".into(), 2));
    assert_eq!(list(TiQuery { run: None, paging: page(2, 2, ""), ..of() }).await, ("r1.c r2.b".into(), 6));

    let view = world
        .store
        .list_tis(&TiQuery { task: Some("b".into()), ..of() })
        .await
        .expect("listed")
        .items
        .remove(0);
    let cached = ti(&snapshot, "b");
    assert_eq!((view.key, &view.instance), (key_of(run.key, cached), &cached.ti));
    assert_eq!((view.pool.as_str(), view.version, view.task_no), ("default_pool", 1, cached.task));
    assert_eq!((view.dag.as_str(), view.run_after), ("etl", run.run_after));
}

pub async fn tries_are_listed_oldest_first(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b").await;
    let owner = world.owner_of("etl").await;
    let list = |task: &'static str| {
        let store = world.store.clone();
        async move {
            let tries =
                store.list_tries(&tenant(), &"etl".into(), &"r1".into(), &task.into(), TiKey::UNMAPPED).await;
            let shown = |view: &tenure_store::TryView| {
                format!(
                    "{}:{}{}",
                    view.instance.try_number,
                    view.instance.state,
                    if view.current { "*" } else { "" }
                )
            };
            tries.expect("listed").iter().map(shown).collect::<Vec<_>>().join(" ")
        }
    };
    assert_eq!(list("a").await, "0:none*");
    world.drive(&owner, run.key, "run=running a=scheduled").await;
    let failed = world.drive(&owner, run.key, "a=up_for_retry").await;
    assert_eq!(list("a").await, "1:up_for_retry*");
    let mut change = world.change(&failed, "a=scheduled");
    let cached = ti(&failed, "a");
    let (ti_key, task_id) = (key_of(run.key, cached), cached.task_id.clone());
    change.past_tries = vec![TryRecord { ti: ti_key, task_id, instance: cached.ti.clone() }];
    world.commit_whole(&owner, &pass_of(vec![change])).await;
    assert_eq!(list("a").await, "1:up_for_retry 2:scheduled*");
    world.drive(&owner, run.key, "a=success b=success run=success").await;
    world.store.clear(&user(), &crate::harness::clear_of("etl", "r1", &["a"])).await.expect("cleared");
    // The next try has not begun: the row still carries the number of the one in history.
    assert_eq!(list("a").await, "1:up_for_retry 2:success");
    world.drive(&owner, run.key, "a=scheduled").await;
    assert_eq!(list("a").await, "1:up_for_retry 2:success 3:scheduled*");
    assert_eq!(list("zz").await, "");
}

pub async fn audit_is_read_in_order_and_from_a_point_on(fresh: Fresh) {
    let world = World::of(fresh);
    let run = world.run_of("etl", "a b<a").await;
    world.run_of("other", "a").await;
    let owner = world.owner_of("etl").await;
    for moves in ["run=running a=scheduled", "a=queued", "a=running", "a=success", "b=skipped run=success"] {
        world.drive(&owner, run.key, moves).await;
    }
    assert_eq!(
        world.trail("etl", "r1").await,
        [
            "run:created >queued",
            "run:moved queued>running",
            "a:moved none>scheduled",
            "a:moved scheduled>queued",
            "a:moved queued>running",
            "a:moved running>success",
            "b:moved none>skipped",
            "run:moved running>success"
        ]
    );
    let rows = world.audit("etl", Some("r1")).await;
    assert!(rows.is_sorted_by_key(|row| row.seq) && rows.is_sorted_by_key(|row| row.at), "{rows:?}");
    let query = AuditQuery {
        tenant: tenant(),
        dag: Some("etl".into()),
        run: Some("r1".into()),
        after_seq: Some(rows[1].seq),
        paging: page(2, 0, ""),
    };
    let later = world.store.list_audit(&query).await.expect("listed");
    assert_eq!((&later.items[..], later.total), (&rows[2..4], rows.len() as u64 - 2));
    let all = AuditQuery { dag: None, run: None, after_seq: None, paging: Paging::default(), ..query };
    let all = world.store.list_audit(&all).await.expect("listed");
    assert_eq!(all.total, rows.len() as u64 + 3, "two registrations and the other run");
}

pub async fn an_unknown_order_is_refused_by_name(fresh: Fresh) {
    let world = World::of(fresh);
    let paging = || page(1, 0, "-height; DROP TABLE runs");
    assert_conflict(world.store.list_dags(&DagQuery { paging: paging(), ..dags() }).await, "height");
    let runs = RunQuery { paging: paging(), ..RunQuery::of(tenant(), None) };
    assert_conflict(world.store.list_runs(&runs).await, "height");
    let tis = TiQuery { paging: paging(), ..TiQuery::of_run(tenant(), "etl".into(), "r1".into()) };
    assert_conflict(world.store.list_tis(&tis).await, "height");
}

pub async fn what_is_missing_is_none(fresh: Fresh) {
    let world = World::of(fresh);
    let nope: DagId = "nope".into();
    assert_eq!(world.store.get_dag(&tenant(), &nope).await.expect("answered"), None);
    assert_eq!(world.store.get_version(&tenant(), &nope, None).await.expect("answered"), None);
    assert_eq!(world.store.get_version(&tenant(), &nope, Some(1)).await.expect("answered"), None);
    assert_eq!(world.store.get_run(&tenant(), &nope, &"r1".into()).await.expect("answered"), None);
    let key = TiKey::unmapped(tenure_model::RunKey(1), tenure_model::TaskNo(0));
    assert_eq!(world.store.get_result(key).await.expect("answered"), None::<Value>);
}

pub async fn the_database_answers_a_ping(fresh: Fresh) {
    World::of(fresh).store.ping().await.expect("alive");
}

pub async fn another_tenant_sees_nothing(fresh: Fresh) {
    let world = World::of(fresh);
    world.run_of("etl", "a").await;
    let stranger = TenantId::new("stranger");
    let dags = DagQuery { tenant: stranger.clone(), ..dags() };
    assert_eq!(world.store.list_dags(&dags).await.expect("listed").total, 0);
    assert_eq!(world.store.list_runs(&RunQuery::of(stranger.clone(), None)).await.expect("listed").total, 0);
    let tis = TiQuery { tenant: stranger.clone(), ..TiQuery::of_run(tenant(), "etl".into(), "r1".into()) };
    assert_eq!(world.store.list_tis(&tis).await.expect("listed").total, 0);
    let audit = AuditQuery {
        tenant: stranger.clone(),
        dag: None,
        run: None,
        after_seq: None,
        paging: page(9, 0, ""),
    };
    assert_eq!(world.store.list_audit(&audit).await.expect("listed").total, 0);
    assert_eq!(world.store.get_run(&stranger, &"etl".into(), &"r1".into()).await.expect("answered"), None);
    let theirs = NewRun { tenant: stranger, ..new_run("etl", "r2") };
    assert!(world.store.create_run(&user(), &theirs).await.is_err());
}
