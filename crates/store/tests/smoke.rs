//! A first look at the whole way.
use gristmill_store::{Store, lease::WorkerId, tasks::*};
use std::time::Duration;
#[test]
fn bench_drain() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let store = Store::open(folder.path().join("x.db")).unwrap();
    let n = 100_000;
    let t = std::time::Instant::now();
    for _ in 0..n / 1000 {
        store.tasks().enqueue_many((0..1000).map(|i| NewTask::new("k", format!("{i}"))).collect()).unwrap();
    }
    println!("enqueue {}/s", n as f64 / t.elapsed().as_secs_f64());
    let w = WorkerId::new("h-1");
    let t = std::time::Instant::now();
    let mut got = 0;
    let mut settle = vec![];
    loop {
        let turn = store
            .tasks()
            .turn(
                std::mem::take(&mut settle),
                vec![Wanted {
                    queue: "default".into(),
                    kind: "k".into(),
                    limit: 1000,
                    lease: Duration::from_secs(300),
                    token: w.token(),
                }],
            )
            .unwrap();
        if turn.claimed.is_empty() {
            break;
        }
        got += turn.claimed.len();
        settle = turn
            .claimed
            .into_iter()
            .map(|c| Settlement {
                id: c.id,
                token: c.token,
                verdict: Verdict::Completed(None),
                checkpointed: false,
            })
            .collect();
    }
    assert_eq!(got, n);
    println!("drain {}/s", n as f64 / t.elapsed().as_secs_f64());
    let t = std::time::Instant::now();
    std::thread::scope(|s| {
        for _ in 0..64 {
            let store = &store;
            s.spawn(move || {
                for i in 0..500 {
                    store.tasks().enqueue(NewTask::new("k", format!("{i}"))).unwrap();
                }
            });
        }
    });
    println!("enqueue 64 callers {}/s", 32000.0 / t.elapsed().as_secs_f64());
    println!("{:?}", store.tasks().counts());
}
