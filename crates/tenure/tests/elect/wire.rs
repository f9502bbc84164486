//! A wire to a server that can fall silent: nothing more is passed on, and nothing is closed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub struct Wire {
    silent: Arc<AtomicBool>,
    pub port: u16,
}

impl Wire {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let wire =
            Self { silent: Arc::new(AtomicBool::new(false)), port: listener.local_addr().unwrap().port() };
        let silent = Arc::clone(&wire.silent);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let silent = Arc::clone(&silent);
                    std::thread::spawn(move || pass_on(from, to, &silent));
                }
            }
        });
        wire
    }

    pub fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while silent.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20)); // for the rest of the test
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    // One side has ended; the other one hears of it.
    let _ = to.shutdown(std::net::Shutdown::Both);
}
