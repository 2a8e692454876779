package mysql

import (
	"bytes"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A loginCache remembers which logins the server has accepted, so that not each of them costs a
// connection to the server.
type loginCache struct {
	mu   sync.Mutex
	seen map[poolKey]cachedLogin // guarded by mu
	// forgot is when everything was removed: results of earlier logins do not count. Guarded by
	// mu.
	forgot time.Duration
}

type cachedLogin struct {
	ok mywire.OK
	at time.Duration
}

const (
	// welcomeKeep is how long an accepted login stays valid, and so how long a locked or
	// expired account and a dropped database still accept logins. A storm of logins costs one
	// connection in that time.
	welcomeKeep = time.Second
	// maxWelcomes bounds the logins that are remembered.
	maxWelcomes = 1000
)

func (w *loginCache) get(key poolKey, now time.Duration) (mywire.OK, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	have, ok := w.seen[key]
	return have.ok, ok && now-have.at < welcomeKeep
}

// put records that the server has accepted a login that began at asked.
func (w *loginCache) put(key poolKey, ok mywire.OK, asked, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if asked <= w.forgot {
		return
	}
	if w.seen == nil || len(w.seen) >= maxWelcomes {
		w.seen = make(map[poolKey]cachedLogin)
	}
	ok.Info, ok.State = bytes.Clone(ok.Info), bytes.Clone(ok.State)
	w.seen[key] = cachedLogin{ok, now}
}

func (w *loginCache) forget(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen, w.forgot = nil, now
}
