//! Goal: tests get a real etcd, cannot see each other's keys, and leave no server behind.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tenure_testkit::{Etcd, wait_for};

#[tokio::test]
async fn each_test_has_a_prefix_of_its_own() {
    let etcd = Etcd::shared();
    assert_ne!(etcd.url(), etcd.url());
    assert!(etcd.url().starts_with(&format!("etcd://{}/", etcd.endpoint())));
}

#[tokio::test]
async fn an_own_server_keeps_its_data_until_it_is_wiped() {
    let etcd = Etcd::start();
    etcd.ctl(&["put", "a", "kept"]);
    etcd.kill();
    assert!(TcpStream::connect(etcd.endpoint()).is_err(), "it is down");
    etcd.start();
    assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]), "kept\n");
    etcd.stop();
    etcd.wipe_data();
    etcd.start();
    assert_eq!(etcd.ctl(&["get", "a"]), "");
}

#[tokio::test]
async fn an_own_server_goes_with_its_handle() {
    let etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    drop(etcd);
    wait_for("the server to be gone", Duration::from_secs(10), || async {
        TcpStream::connect(&endpoint).err()
    })
    .await;
}

/// Locks end with their process, however it ends: the guard sees that nobody uses the server any more.
#[tokio::test]
async fn an_own_server_goes_when_its_user_is_killed() {
    if let Ok(file) = std::env::var("TENURE_TESTKIT_VICTIM") {
        let etcd = Etcd::start();
        std::fs::write(file, etcd.endpoint()).expect("the test's own folder");
        std::process::abort();
    }
    // What the victim leaves behind lies in here; the server's account has to reach it.
    let folder = tenure_testkit::temp_dir();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
    let file = folder.path().join("endpoint");
    let victim = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "an_own_server_goes_when_its_user_is_killed"])
        .env("TENURE_TESTKIT_VICTIM", &file)
        .env("TMPDIR", folder.path())
        .output()
        .expect("this test can be started again");
    assert!(!victim.status.success(), "it has aborted");
    let endpoint = std::fs::read_to_string(&file).expect("it had started a server");
    wait_for("the server to be gone", Duration::from_secs(30), || async {
        TcpStream::connect(&endpoint).err()
    })
    .await;
}
