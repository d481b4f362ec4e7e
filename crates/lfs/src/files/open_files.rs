//! Files that are open or were closed recently, with their mappings in the cache.
//!
//! Locks: `making`, then the state lock.

use crate::files::read_ahead::Near;
use crate::transaction::resources::Resources;
use forebay_base::sync::Mutex;
use forebay_cache::dirty::domain::{Domain, Stay};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// The open and recently closed files, with the resources of the volume.
pub(crate) struct OpenFiles {
    pub resources: Arc<Resources>,
    pub near: Near,
    /// Held while a mapping is made or dropped: see [`crate::files::content`].
    pub making: Mutex<()>,
    /// The flush domain of all content, if there is a cache.
    pub domain: Option<Arc<Domain>>,
    /// Keeps the domain's flusher running between one small file and the next.
    _stays: Option<Stay>,
    pub me: Weak<OpenFiles>,
}

impl Deref for OpenFiles {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.resources
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        // A later open does not find the retained mappings (closed.Y12).
        let retained = self.state.lock().take_all_retained();
        self.drop_retained(retained);
    }
}

impl OpenFiles {
    /// A table without open files.
    pub fn new(resources: Arc<Resources>, domain: Option<Arc<Domain>>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            resources,
            near: Near::default(),
            making: Mutex::default(),
            _stays: domain.as_ref().map(Domain::stay),
            domain,
            me: me.clone(),
        })
    }

    /// Drops the folios of retained mappings that no open will continue.
    pub fn drop_retained(&self, mappings: Vec<u32>) {
        let (Some(cache), Some(domain)) = (&self.options.cache, &self.domain) else { return };
        let block_size = self.layout.geometry.block_bytes();
        for mapping in mappings {
            cache.drop_left(mapping, domain.clone(), block_size);
        }
    }
}
