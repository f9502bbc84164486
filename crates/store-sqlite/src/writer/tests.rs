//! Goal: jobs share a commit but not their failures.

use tenure_clock::SystemClock;

use super::*;

fn writer() -> (Writer, tokio::sync::watch::Receiver<u64>) {
    let conn = Connection::open_in_memory().expect("memory");
    conn.pragma_update(None, "foreign_keys", true).expect("set");
    conn.execute_batch("CREATE TABLE numbers (n INTEGER PRIMARY KEY)").expect("created");
    let wakes = Wakes::new(2);
    let woken = wakes.of(ShardId(0));
    (Writer::start(conn, wakes, Arc::new(SystemClock)).expect("started"), woken)
}

fn insert(tx: &Tx<'_>, number: i64) -> Result<(), Fail> {
    tx.execute("INSERT INTO numbers VALUES (?1)", [number])?;
    Ok(())
}

async fn numbers(writer: &Writer) -> Vec<i64> {
    let read = writer.run(Urgency::Ordinary, "reading", |tx| {
        let mut select = tx.prepare_cached("SELECT n FROM numbers ORDER BY n")?;
        crate::rows::all(&mut select, [], |cells| cells.take())
    });
    read.await.expect("read")
}

/// Everything behind a job that waits ends up in one batch.
async fn held_up(
    writer: &Writer,
) -> (std::sync::mpsc::Sender<()>, impl Future<Output = Result<(), StoreError>>) {
    let (go, gate) = std::sync::mpsc::channel();
    let (started, running) = oneshot::channel();
    let (answer, reply) = oneshot::channel();
    let work = move |_: &Tx<'_>| {
        started.send(()).expect("awaited");
        gate.recv_timeout(Duration::from_secs(10)).expect("released");
        Ok(())
    };
    let errand = Errand { doing: "waiting", work: Some(work), outcome: None, answer };
    writer.jobs.as_ref().expect("open").send((Urgency::Ordinary, Box::new(errand))).expect("running");
    running.await.expect("it started");
    (go, async { reply.await.expect("answered") })
}

#[tokio::test]
async fn a_failed_job_takes_back_its_own_changes_and_nobody_elses() {
    let (writer, _) = writer();
    let (go, first) = held_up(&writer).await;
    let good = writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 1));
    let bad = writer.run(Urgency::Ordinary, "failing", |tx| {
        insert(tx, 2)?;
        Err::<(), _>(Fail::conflict("no"))
    });
    let broken = writer.run(Urgency::Ordinary, "breaking", |tx| insert(tx, 3).and_then(|()| insert(tx, 1)));
    let also_good = writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 4));
    let release = async { go.send(()).expect("waiting") };
    let (good, bad, broken, also_good, first, ()) =
        tokio::join!(good, bad, broken, also_good, first, release);
    assert!(good.is_ok() && also_good.is_ok() && first.is_ok());
    assert!(matches!(bad, Err(StoreError::Conflict(_))));
    assert!(matches!(broken, Err(StoreError::Unavailable { .. })));
    assert_eq!(numbers(&writer).await, [1, 4]);
}

#[tokio::test]
async fn a_panic_costs_one_job_and_not_the_thread() {
    let (writer, _) = writer();
    let (go, first) = held_up(&writer).await;
    let good = writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 1));
    let panics = writer.run(Urgency::Ordinary, "panicking", |tx| -> Result<(), Fail> {
        insert(tx, 2)?;
        panic!("a bug")
    });
    let release = async { go.send(()).expect("waiting") };
    let (good, panics, _, ()) = tokio::join!(good, panics, first, release);
    assert!(good.is_ok());
    let Err(StoreError::Unavailable { source, .. }) = panics else { panic!("{panics:?}") };
    assert!(source.to_string().contains("a bug"), "{source}");
    writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 3)).await.expect("the thread lives");
    assert_eq!(numbers(&writer).await, [1, 3]);
}

#[tokio::test]
async fn a_failed_commit_leaves_every_job_in_doubt() {
    let (writer, _) = writer();
    let setup = writer.run(Urgency::Ordinary, "setting up", |tx| {
        let deferred = "CREATE TABLE refs (n INTEGER REFERENCES numbers DEFERRABLE INITIALLY DEFERRED)";
        Ok(tx.execute_batch(deferred)?)
    });
    setup.await.expect("set up");
    let (go, first) = held_up(&writer).await;
    let good = writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 1));
    // The violation comes to light at COMMIT, which then fails as it would on a broken disk.
    let spoils = writer.run(Urgency::Ordinary, "spoiling", |tx| {
        tx.execute("INSERT INTO refs VALUES (99)", [])?;
        Ok(())
    });
    let release = async { go.send(()).expect("waiting") };
    let (good, spoils, _, ()) = tokio::join!(good, spoils, first, release);
    assert!(matches!(good, Err(StoreError::Unknown { .. })), "{good:?}");
    assert!(matches!(spoils, Err(StoreError::Unknown { .. })), "{spoils:?}");
    assert_eq!(numbers(&writer).await, Vec::<i64>::new());
}

#[tokio::test]
async fn only_kept_jobs_wake() {
    let (writer, mut wakes) = writer();
    wakes.borrow_and_update();
    writer.run(Urgency::Ordinary, "adding", |tx| insert(tx, 1)).await.expect("added");
    let refused = writer.run(Urgency::Ordinary, "waking in vain", |tx| {
        tx.wake(ShardId(0));
        Err::<(), _>(Fail::conflict("no"))
    });
    refused.await.expect_err("refused");
    assert!(!wakes.has_changed().expect("open"));
    let woken = writer.run(Urgency::Ordinary, "waking", |tx| {
        tx.wake(ShardId(0));
        Ok(())
    });
    woken.await.expect("done");
    assert!(wakes.has_changed().expect("open"), "before the answer, so that nobody waits for a tick");
}

#[tokio::test]
async fn leases_go_before_what_waits() {
    let (writer, _) = writer();
    let (go, first) = held_up(&writer).await;
    let order = Arc::new(std::sync::Mutex::new(vec![]));
    let noting = |name: &'static str| {
        let order = Arc::clone(&order);
        move |_: &Tx<'_>| {
            order.lock().expect("no panic").push(name);
            Ok(())
        }
    };
    let trigger = writer.run(Urgency::Ordinary, "triggering", noting("trigger"));
    let renewal = writer.run(Urgency::Lease, "renewing", noting("renewal"));
    let release = async { go.send(()).expect("waiting") };
    let (trigger, renewal, _, ()) = tokio::join!(trigger, renewal, first, release);
    assert!(trigger.is_ok() && renewal.is_ok());
    assert_eq!(*order.lock().expect("no panic"), ["renewal", "trigger"]);
}
