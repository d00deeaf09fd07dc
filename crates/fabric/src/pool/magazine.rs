//! The fast path: each thread has, for each pool and class, two magazines of free blocks. Allocating takes a block from them, freeing puts one into
//! them, whichever thread it came from; only an empty or a full pair goes to the depot. (The scheme is that of Bonwick and Adams, 2001.)

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::buffer::Buffer;
use super::class::{CLASSES, magazine_of};
use super::config::Zeroing;
use super::shared::{Block, Magazine, Shared};
use super::{Root, Token};
use crate::error::FabricError;

thread_local! {
    static LOCALS: RefCell<Vec<ThreadCache>> = const { RefCell::new(Vec::new()) };
}

/// What a thread keeps of one pool.
struct ThreadCache {
    pool: u64,
    root: Weak<Root>,
    /// Weak: a thread that has allocated once must not keep a pool alive that nobody else has.
    token: Weak<Token>,
    pairs: Box<[Pair; CLASSES]>,
}

#[derive(Default)]
struct Pair {
    loaded: Magazine,
    spare: Magazine,
}

/// A buffer of `bytes` out of `class`; `None`: larger than all classes.
#[inline]
pub fn alloc(root: &Arc<Root>, bytes: usize, class: Option<usize>) -> Result<Buffer, FabricError> {
    let shared = &root.shared;
    shared.home.check("this pool")?;
    let buffer = match class {
        Some(class) => LOCALS
            .try_with(|locals| {
                let mut locals = locals.borrow_mut();
                let (cache, token) = of_thread(&mut locals, root);
                let block = cache.pairs[class].take(shared, class)?;
                Ok(Buffer { token, block, length: bytes, class: Some(class as u8) })
            })
            .unwrap_or_else(|_| alloc_at_exit(root, bytes, class))?,
        None => Buffer { token: root.token_of_thread(), block: shared.take_large(bytes)?, length: bytes, class: None },
    };
    if shared.config.zeroing == Zeroing::OnAlloc {
        buffer.zero(0, bytes)?;
    }
    Ok(buffer)
}

/// Takes a buffer's bytes back.
#[inline]
pub fn free(shared: &Arc<Shared>, block: Block, class: Option<u8>, bytes: usize) {
    if !shared.home.is_here() {
        return;
    }
    let Some(class) = class.map(usize::from) else { return shared.give_large(block, bytes) };
    let is_kept = LOCALS.try_with(|locals| {
        let Ok(mut locals) = locals.try_borrow_mut() else { return false };
        let Some(cache) = locals.iter_mut().find(|cache| cache.pool == shared.id) else { return false };
        cache.pairs[class].put(shared, class, block);
        true
    });
    if is_kept != Ok(true) {
        // A thread that only frees, or that is ending.
        shared.put_one(class, block);
    }
}

/// A thread whose locals are gone already allocates: rare, so the whole magazine goes through the depot.
#[cold]
fn alloc_at_exit(root: &Arc<Root>, bytes: usize, class: usize) -> Result<Buffer, FabricError> {
    let mut magazine = root.shared.refill(class)?;
    let block = magazine.pop().expect("a magazine from the depot is not empty");
    root.shared.put(class, magazine);
    Ok(Buffer { token: root.new_token(), block, length: bytes, class: Some(class as u8) })
}

#[inline]
fn of_thread<'t>(locals: &'t mut Vec<ThreadCache>, root: &Arc<Root>) -> (&'t mut ThreadCache, Arc<Token>) {
    let id = root.shared.id;
    let index = match locals.iter().position(|cache| cache.pool == id) {
        Some(index) => index,
        None => {
            locals.retain(|cache| cache.root.strong_count() > 0);
            locals.push(ThreadCache::new(root));
            locals.len() - 1
        }
    };
    let cache = &mut locals[index];
    let token = cache.token.upgrade().expect("the pool holds its threads' tokens");
    (cache, token)
}

impl Root {
    fn token_of_thread(self: &Arc<Self>) -> Arc<Token> {
        LOCALS.try_with(|locals| of_thread(&mut locals.borrow_mut(), self).1).unwrap_or_else(|_| self.new_token())
    }
}

impl ThreadCache {
    #[cold]
    fn new(root: &Arc<Root>) -> Self {
        Self {
            pool: root.shared.id,
            root: Arc::downgrade(root),
            token: Arc::downgrade(&root.new_token()),
            pairs: Box::new(std::array::from_fn(|_| Pair::default())),
        }
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        let Some(token) = self.token.upgrade() else { return };
        if !token.shared.home.is_here() {
            return;
        }
        for (class, pair) in self.pairs.iter_mut().enumerate() {
            token.shared.put(class, std::mem::take(&mut pair.loaded));
            token.shared.put(class, std::mem::take(&mut pair.spare));
        }
        if let Some(root) = self.root.upgrade() {
            root.forget_token(&token);
        }
    }
}

impl Pair {
    #[inline]
    fn take(&mut self, shared: &Shared, class: usize) -> Result<Block, FabricError> {
        if let Some(block) = self.loaded.pop() {
            return Ok(block);
        }
        self.take_slowly(shared, class)
    }

    #[cold]
    fn take_slowly(&mut self, shared: &Shared, class: usize) -> Result<Block, FabricError> {
        if self.spare.is_empty() {
            self.loaded = shared.refill(class)?;
        } else {
            std::mem::swap(&mut self.loaded, &mut self.spare);
        }
        Ok(self.loaded.pop().expect("a magazine from the depot is not empty"))
    }

    #[inline]
    fn put(&mut self, shared: &Shared, class: usize, block: Block) {
        if self.loaded.len() >= magazine_of(class) {
            self.put_slowly(shared, class);
        }
        self.loaded.push(block);
    }

    #[cold]
    fn put_slowly(&mut self, shared: &Shared, class: usize) {
        if !self.spare.is_empty() {
            shared.put(class, std::mem::take(&mut self.spare));
        }
        std::mem::swap(&mut self.loaded, &mut self.spare);
        self.loaded.reserve_exact(magazine_of(class));
    }
}
