//! The protocols that do not go through the one lock, on the real code, under every order of memory that the
//! language allows. Run by `cargo xtask prove`.

use super::{Core, Found, Search};
use crate::{
    Builder, panics,
    sync::Arc,
    task::{Task, TaskId},
    worker::Threads,
};
use ::loom::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};
use std::task::{Wake, Waker};

struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

fn core() -> Arc<Core<(), Threads>> {
    Arc::new(Core::new(Builder::new().workers(2).queue(2).check(None).unwrap(), (), None))
}

/// See `park`: a worker that falls asleep while another spawns either finds the task or is woken.
#[test]
fn a_spawn_and_a_sleeper_do_not_miss_each_other() {
    ::loom::model(|| {
        let core = core();
        let (spawner, sleeper) = (core.seat(), core.seat());
        let bell = Arc::new(Bell(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&bell));
        let asleep = thread::spawn({
            let core = Arc::clone(&core);
            move || {
                let mut search = Search::Fresh;
                let found = core.find(&sleeper, &mut search, 1, false, || waker);
                matches!(found, Found::Nothing)
            }
        });
        let inside = panics::enter(core.address(), spawner.id);
        assert!(core.spawn(&spawner, Task::new(|_| Ok(()))).is_ok());
        drop(inside);
        let asleep = asleep.join().unwrap();
        assert_eq!(asleep, bell.0.load(Relaxed), "asleep, but not woken; or woken for nothing");
        core.cancel();
    });
}

/// See `Slot::run`: of the worker that finishes and the watch that gives up, exactly one settles; and
/// a watch that wins names the task it gave up.
#[test]
fn a_run_is_settled_once() {
    ::loom::model(|| {
        let core = core();
        let slot = core.seat();
        let watch = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                slot.running().is_some_and(|(run, _)| {
                    let name = slot.current();
                    let given_up = slot.give_up(run);
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
        let run = slot.begin(&first, 0);
        let mut finished = slot.finish(run, &first);
        if finished {
            let second = Task::new(|_| Ok(()));
            let run = slot.begin(&second, 0);
            finished = slot.finish(run, &second);
        }
        assert_eq!(watch.join().unwrap(), !finished);
        core.cancel();
    });
}

/// See `Slot::listen`: who waits to be told to stop is told, whichever comes first.
#[test]
fn a_cancellation_is_heard() {
    ::loom::model(|| {
        let core = core();
        let slot = core.seat();
        let bell = Arc::new(Bell(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&bell));
        let canceller = thread::spawn({
            let core = Arc::clone(&core);
            move || core.cancel()
        });
        slot.listen(0, &waker);
        let seen = slot.is_stopped(1);
        canceller.join().unwrap();
        assert!(seen || bell.0.load(Relaxed), "neither seen nor told");
    });
}
