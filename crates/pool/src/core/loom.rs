//! Checks the protocols that do not use the lock, on the real code, under every memory order that the language allows.
//! Run by `cargo xtask prove`.

use super::{Core, Found, SearchState};
use crate::{
    CancelToken, PoolBuilder,
    outcome::Outcomes,
    panics,
    sync::Arc,
    task::{Task, TaskId},
    worker::Threads,
    worker_state::WorkerState,
};
use ::loom::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
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

/// The token of a run is cancelled when the pool is cancelled, the run expires, is abandoned or ends, also if the token
/// is created meanwhile on another thread: see `WorkerState::token`.
fn check_token(stop: impl Fn(&WorkerState<(), Threads>, u64, &Task) + Sync + Send + 'static) {
    let stop = Arc::new(stop);
    ::loom::model(move || {
        let (core, stop) = (core(), Arc::clone(&stop));
        let worker = core.register();
        let task = Task::new(|_| Ok(()));
        let run = worker.begin_run(&task, 0, 0);
        let holder = thread::spawn({
            let worker = Arc::clone(&worker);
            move || worker.token(run)
        });
        stop(&worker, run, &task);
        assert!(holder.join().unwrap().is_cancelled(), "the run should stop and its token is not cancelled");
        core.cancel();
    });
}

#[test]
fn token_is_cancelled_when_created_while_its_run_ends() {
    check_token(|worker, run, task| assert!(worker.finish_run(run, task)));
}

#[test]
fn token_is_cancelled_when_created_while_its_run_expires() {
    check_token(|worker, run, _| assert!(worker.expire(run)));
}

#[test]
fn token_is_cancelled_when_created_while_its_run_is_abandoned() {
    check_token(|worker, run, _| {
        assert!(worker.abandon_run(run));
        worker.cancel_token(|_| true);
    });
}

#[test]
fn token_is_cancelled_when_created_while_its_pool_is_cancelled() {
    check_token(|worker, _, _| worker.core.cancel());
}

/// A context of an earlier run asks for its token while the next run uses its own, which stays as it is.
#[test]
fn token_of_earlier_run_does_not_affect_the_next() {
    ::loom::model(|| {
        let core = core();
        let worker = core.register();
        let task = Task::new(|_| Ok(()));
        let earlier = worker.begin_run(&task, 0, 0);
        let holder = thread::spawn({
            let worker = Arc::clone(&worker);
            move || worker.token(earlier)
        });
        assert!(worker.finish_run(earlier, &task));
        let run = worker.begin_run(&task, 0, 0);
        let token = worker.token(run);
        assert!(holder.join().unwrap().is_cancelled());
        assert!(!token.is_cancelled());
        assert!(worker.finish_run(run, &task));
        assert!(token.is_cancelled());
        core.cancel();
    });
}

/// A listener is called exactly once, whether it is registered before or after the cancellation.
#[test]
fn callback_is_called_once_when_registered_while_cancelled() {
    ::loom::model(|| {
        let token = CancelToken::new();
        let canceller = thread::spawn({
            let token = token.clone();
            move || token.cancel()
        });
        let calls = Arc::new(AtomicUsize::new(0));
        let called = Arc::clone(&calls);
        let child = token.child();
        let _registered = child.on_cancel(move || assert_eq!(called.fetch_add(1, Relaxed), 0));
        canceller.join().unwrap();
        assert_eq!((calls.load(Relaxed), child.is_cancelled()), (1, true));
    });
}
