//! Checks the protocols that do not use the lock, on the real code, under every memory order that the language allows.
//! Run by `cargo xtask prove`.

use super::{Core, Found, SearchState};
use crate::{
    PoolBuilder,
    outcome::Outcomes,
    panics,
    sync::Arc,
    task::{Task, TaskId},
    worker::Threads,
};
use ::loom::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};
use std::task::{Wake, Waker};

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

fn core() -> Arc<Core<(), Threads>> {
    Arc::new(Core::new(PoolBuilder::new().workers(2).queue_capacity(2).into_config().unwrap(), (), Outcomes::Discard))
}

/// A worker that falls asleep while another spawns either finds the task or is woken: see `Core::park`.
#[test]
fn sleeper_is_woken_or_finds_task_when_other_worker_spawns() {
    ::loom::model(|| {
        let core = core();
        let (spawner, sleeper) = (core.register(), core.register());
        let flag = Arc::new(WakeFlag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        let asleep = thread::spawn({
            let core = Arc::clone(&core);
            move || {
                let mut search = SearchState::NotStarted;
                let found = core.next_task(&sleeper, &mut search, 1, false, || waker);
                matches!(found, Found::Nothing)
            }
        });
        let inside = panics::enter_worker(core.address(), spawner.id);
        assert!(core.spawn(&spawner, Task::new(|_| Ok(()))).is_ok());
        drop(inside);
        let asleep = asleep.join().unwrap();
        assert_eq!(asleep, flag.0.load(Relaxed), "asleep but not woken, or woken but not asleep");
        core.cancel();
    });
}

/// Either the worker or the stall detector settles a run, never both, and a stall detector that wins names the task
/// that it abandoned: see `WorkerState::run`.
#[test]
fn run_is_settled_once_when_finish_and_abandon_race() {
    ::loom::model(|| {
        let core = core();
        let worker = core.register();
        let stall_detector = thread::spawn({
            let worker = Arc::clone(&worker);
            move || {
                worker.current_run().is_some_and(|(run, _)| {
                    let task = worker.current_task();
                    let abandoned = worker.abandon_run(run);
                    if abandoned {
                        let id = if run == 1 { 7 } else { 0 };
                        assert_eq!(task.map(|task| task.id), Some(TaskId(id)), "task of another run");
                    }
                    abandoned
                })
            }
        });
        let mut first = Task::new(|_| Ok(()));
        first.meta_mut().id = 7;
        let run = worker.begin_run(&first, 0, 0);
        let mut finished = worker.finish_run(run, &first);
        if finished {
            let second = Task::new(|_| Ok(()));
            let run = worker.begin_run(&second, 0, 0);
            finished = worker.finish_run(run, &second);
        }
        assert_eq!(stall_detector.join().unwrap(), !finished);
        core.cancel();
    });
}

/// A cancellation is seen by a listener or wakes it, whichever comes first: see `WorkerState::listen`.
#[test]
fn listener_sees_cancel_or_is_woken_when_both_race() {
    ::loom::model(|| {
        let core = core();
        let worker = core.register();
        let flag = Arc::new(WakeFlag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        let canceller = thread::spawn({
            let core = Arc::clone(&core);
            move || core.cancel()
        });
        worker.listen(0, &waker);
        let seen = worker.should_stop(1);
        canceller.join().unwrap();
        assert!(seen || flag.0.load(Relaxed), "neither seen nor woken");
    });
}
