package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/outbox/pooled"
	"github.com/weirdb/weir/outbox"
)

// locks watches the sessions that hold advisory locks, and where the address leads: a lock counts on
// its own server only.
type locks struct {
	connector
	// They are the constants, except in tests.
	standbyPatience, leaderPatience time.Duration

	pooled pooled.Check

	mu sync.Mutex
	// standby is since when Lead has asked for a shard through the pool only.
	standby map[int]time.Time
	// listening ends the connections of Wake.
	listening map[*pgx.Conn]context.CancelFunc
}

// placeText is an expression that identifies the server and the database of a session. A
// connection string may name several servers, and an address may lead to another one by now.
const placeText = "pg_catalog.concat_ws(' ', (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint," +
	" (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"

// errElsewhere ends a leadership: only on the server of the lock is no other relay the leader.
var errElsewhere = fmt.Errorf("%w: the address leads to another server by now than that of its lock", outbox.ErrDeposed)

// standbyPatience is how long a standby relay asks through the pool only. The server of the
// pool's connections may no longer be the one that the address leads to.
const standbyPatience = 15 * time.Second

// leaderPatience is how long a leader stays with its server before it looks again whether the
// address leads there.
const leaderPatience = time.Minute

// maxSilence is how long a leader's session may be idle before the server ends it: the
// process may be stopped or its machine hang while the connection stays open. watch pings
// much more often.
const maxSilence = 15 * time.Second

// limitSilence makes the server end the session once it is idle for longest. Servers before
// version 14 cannot; there the lock is held as long as the connection exists.
func limitSilence(ctx context.Context, c *pgx.Conn, longest time.Duration) error {
	_, err := c.Exec(ctx, "SELECT set_config(name, $1, false) FROM (VALUES ('idle_session_timeout')) AS v(name) WHERE current_setting(name, true) IS NOT NULL",
		fmt.Sprint(longest.Milliseconds()))
	if err != nil {
		return fmt.Errorf("set idle_session_timeout: %w", err)
	}
	return nil
}

// advisoryKeys selects the keys of all advisory locks held in the database.
const advisoryKeys = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_catalog.pg_locks" +
	" WHERE locktype = 'advisory' AND objsubid = 1 AND granted" +
	" AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"

// advisoryHeld reports whether a session of the database holds an advisory lock.
func advisoryHeld(ctx context.Context, q querier, key int64) (held bool, err error) {
	err = q.QueryRow(ctx, "SELECT $1::bigint IN ("+advisoryKeys+")", key).Scan(&held)
	return held, err
}

// held asks through the pool whether a session holds a lock, and which place answers. A standby
// relay asks several times a second; a new connection for each attempt would cost the server
// some 10 ms of CPU. If the pool does not answer in time, held returns false and "", and Lead
// tries the lock itself.
func (k *locks) held(ctx context.Context, key int64) (held bool, place string) {
	ctx, cancel := context.WithTimeout(ctx, k.leaseTimeout)
	defer cancel()
	err := k.pool.QueryRow(ctx, "SELECT $1::bigint IN ("+advisoryKeys+"), "+placeText, key).Scan(&held, &place)
	if err != nil {
		return false, ""
	}
	return held, place
}

// moved drops connections of the server that the address led to before.
func (k *locks) moved() {
	k.pool.Reset()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, leave := range k.listening {
		leave()
	}
}

// doubts reports whether to try a lock with a new connection although the pool says that it is
// held: once per standbyPatience.
func (k *locks) doubts(shard int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	since, ok := k.standby[shard]
	doubts := ok && time.Since(since) >= k.standbyPatience
	if !ok || doubts {
		k.standby[shard] = time.Now()
	}
	return doubts
}

// stay looks from time to time where the address leads, and calls lose if that is another primary
// than the one of a lock. There may be messages there and no leader: this relay may be the only one.
func (k *locks) stay(ctx context.Context, place string, lost <-chan struct{}, lose func()) {
	tick := time.NewTicker(k.leaderPatience)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lost:
			return
		case <-tick.C:
		}
		c, err := k.connectToWait(ctx)
		if err != nil {
			continue // the lock does not depend on it
		}
		var elsewhere bool
		err = k.answered(ctx, func(ctx context.Context) error {
			return c.QueryRow(ctx, "SELECT "+placeText+" <> $1 AND NOT pg_catalog.pg_is_in_recovery()", place).Scan(&elsewhere)
		})
		closeConn(c)
		if err == nil && elsewhere {
			lose()
		}
	}
}

// watchSession calls lose when a session that only holds locks has ended, or is not in the
// process that took them, pid. It notices a closed connection at once and asks a silent one.
func (k *locks) watchSession(ctx context.Context, c *pgx.Conn, pid int64, lose func()) {
	timeout := k.leaseTimeout
	interval := max(timeout/4, 10*time.Millisecond)
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, interval)
		_, err := c.WaitForNotification(waiting)
		over := waiting.Err() != nil
		cancel()
		if err != nil && !over || c.IsClosed() {
			lose()
			return
		}
		if ctx.Err() != nil {
			return
		}
		// Not with ctx: canceling the question would close the session, and Close could not
		// unlock.
		asking, cancel := context.WithTimeout(context.Background(), timeout)
		now, err := poolCheckSession{c}.Number(asking)
		cancel()
		if err == nil && now != pid {
			k.pooled.Moved()
		}
		if err != nil || now != pid {
			lose()
			return
		}
	}
}
