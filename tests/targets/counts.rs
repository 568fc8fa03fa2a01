//! Threads that compute checksums and check each. A line on standard input is answered by their number, and what was wrong.
use std::collections::HashMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

static ROUNDS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

#[no_mangle]
#[inline(never)]
pub extern "C" fn checksum(words: &HashMap<u64, String>) -> u64 {
    words.iter().map(|(key, word)| key * word.len() as u64).sum()
}

fn work() {
    loop {
        let words: HashMap<u64, String> = (0..50).map(|n| (n, "x".repeat(n as usize))).collect();
        if checksum(&words) != (0..50).map(|n| n * n).sum() {
            WRONG.fetch_add(1, Relaxed);
        }
        ROUNDS.fetch_add(1, Relaxed);
    }
}

fn main() {
    for _ in 0..4 {
        thread::spawn(work);
    }
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        let wrong = WRONG.load(Relaxed);
        let said = if wrong > 0 { format!("\t{wrong} wrong checksums") } else { String::new() };
        println!("{}{said}", ROUNDS.load(Relaxed));
    }
}
