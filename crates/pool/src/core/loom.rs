//! The protocols that do not go through the one lock, on the real code, under every order of memory that the
//! language allows. Run by `cargo xtask prove`.

use super::{Core, Found, SearchState};
use crate::{
    PoolBuilder, panics,
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
    Arc::new(Core::new(PoolBuilder::new().workers(2).queue_capacity(2).into_config(None).unwrap(), (), None))
}

/// See `park`: a worker that falls asleep while another spawns either finds the task or is woken.
#[test]
fn a_spawn_and_a_sleeper_do_not_miss_each_other() {
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
        assert_eq!(asleep, flag.0.load(Relaxed), "asleep, but not woken; or woken for nothing");
        core.cancel();
    });
}

/// See `WorkerState::run`: of the worker that finishes and the watch that gives up, exactly one settles; and
/// a watch that wins names the task it gave up.
#[test]
fn a_run_is_settled_once() {
    ::loom::model(|| {
        let core = core();
        let worker = core.register();
        let watch = thread::spawn({
            let worker = Arc::clone(&worker);
            move || {
                worker.current_run().is_some_and(|(run, _)| {
                    let name = worker.current_task();
                    let given_up = worker.abandon_run(run);
                    if given_up {
                        let id = if run == 1 { 7 } else { 0 };
                        assert_eq!(name.map(|name| name.id), Some(TaskId(id)), "named after another run");
                    }
                    given_up
                })
            }
        });
        let mut first = Task::new(|_| Ok(()));
        first.meta_mut().id = 7;
        let run = worker.begin_run(&first, 0);
        let mut finished = worker.finish_run(run, &first);
        if finished {
            let second = Task::new(|_| Ok(()));
            let run = worker.begin_run(&second, 0);
            finished = worker.finish_run(run, &second);
        }
        assert_eq!(watch.join().unwrap(), !finished);
        core.cancel();
    });
}

/// See `WorkerState::listen`: who waits to be told to stop is told, whichever comes first.
#[test]
fn a_cancellation_is_heard() {
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
        assert!(seen || flag.0.load(Relaxed), "neither seen nor told");
    });
}
