package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Logins with unknown names, and refusals, do not evict answers. An answer that was requested
// before all were forgotten is not kept, nor is an older one.
func TestRecentAnswers(t *testing.T) {
	t.Parallel()
	var r loginCache
	secret, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	key := func(user string) poolKey { return poolKey{database: "shop", user: user} }
	good := func() *roleStatus {
		return &roleStatus{role: true, database: true, login: true, connect: true, open: true, mark: "m", secret: secret, asked: time.Now(), heard: time.Now()}
	}
	has := func(user string, keep time.Duration) bool { return r.get(key(user), keep) != nil }
	first := good()
	r.put(key("bob"), first)
	for i := range 2 * maxRecents {
		st := good()
		st.role = false
		r.put(key(fmt.Sprint("nobody", i)), st)
	}
	if !has("bob", time.Hour) || has("nobody7", time.Hour) {
		t.Error("names of nobody are kept, or put out others")
	}
	if _, plain := r.get(key("bob"), time.Hour).secret.Plain(); plain {
		t.Error("what is stored of the password is kept")
	}
	if has("bob", 0) || has("bob", -1) || has("alice", time.Hour) {
		t.Error("an answer serves longer than it may, or another")
	}
	second := good()
	r.put(key("bob"), second)
	r.put(key("bob"), first)
	if got := r.get(key("bob"), time.Hour); !got.asked.Equal(second.asked) {
		t.Error("an older answer takes the place of a newer one")
	}
	late := good()
	r.forget()
	if has("bob", time.Hour) {
		t.Error("an answer is there that was forgotten")
	}
	r.put(key("bob"), late)
	if has("bob", time.Hour) {
		t.Error("an answer from before all was forgotten is kept")
	}
	r.put(key("bob"), good())
	expired := good()
	expired.expired = true
	r.put(key("bob"), expired)
	if has("bob", time.Hour) {
		t.Error("a refusal leaves the good answer from before")
	}
	for i := range maxRecents + 10 {
		r.put(key(fmt.Sprint("user", i)), good())
	}
	if len(r.seen) > maxRecents {
		t.Errorf("%d answers are kept", len(r.seen))
	}
}
