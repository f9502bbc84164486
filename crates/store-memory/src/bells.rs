//! `watch` channels that ring in the order in which people came to listen: one for each of them, because a shared one
//! wakes them in an order that no seed decides.

use std::sync::Mutex;

use tokio::sync::watch;

#[derive(Debug, Default)]
pub struct Bells(Mutex<Vec<watch::Sender<u64>>>);

impl Bells {
    pub fn listen(&self) -> watch::Receiver<u64> {
        let (sender, receiver) = watch::channel(0);
        let mut bells = self.0.lock().expect("no panic while holding the bells");
        bells.retain(|bell| !bell.is_closed());
        bells.push(sender);
        receiver
    }

    pub fn ring(&self) {
        for bell in self.0.lock().expect("no panic while holding the bells").iter() {
            bell.send_modify(|count| *count += 1);
        }
    }
}
