package wal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestReceiverGoesOn cuts a receiver's connections and its server, and compares
// what is kept with the server's own files.
func TestReceiverGoesOn(t *testing.T) {
	r := newRig(t)
	relay := labtest.Relay(t, fmt.Sprintf("%s:%d", r.p.Host(), r.p.Port()))
	dsn := strings.Replace(r.dsn(), fmt.Sprintf(":%d/", r.p.Port()), fmt.Sprintf(":%d/", relay.Port()), 1)
	c := r.receive(ReceiveOptions{DSN: dsn})
	kept := func() {
		t.Helper()
		at := r.position()
		testkit.Eventually(t, "the log is kept", func() bool { return c.now().Flushed >= at })
	}
	kept()
	testkit.Eventually(t, "the lag is known", func() bool { return c.now().LagBytes == 0 })
	for i := 1; i <= 3; i++ {
		before := c.now().Reconnects
		relay.Cut()
		r.psql(fmt.Sprintf("INSERT INTO marks VALUES (%d); SELECT pg_switch_wal()", i))
		testkit.Eventually(t, "it connects again", func() bool { return c.now().Reconnects > before })
		kept()
	}
	r.p.Kill()
	testkit.Eventually(t, "it notices", func() bool { return !c.now().Connected })
	if err := r.p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.psql("INSERT INTO marks VALUES (4); SELECT pg_switch_wal()")
	kept()
	if err := c.stop(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	s, err := openStore(t.Context(), r.storage, c.now().SystemID)
	if err != nil {
		t.Fatal(err)
	}
	segments, _, err := s.list(t.Context())
	if err != nil || len(s.ranges(segments)) != 1 {
		t.Fatalf("ranges %+v, %v", s.ranges(segments), err)
	}
	compared := 0
	for _, f := range segments {
		own, err := os.ReadFile(filepath.Join(r.p.DataDir(), "pg_wal", f.segment.Name()))
		if err != nil {
			continue // the server needs it no more
		}
		var got bytes.Buffer
		n, err := s.get(t.Context(), f.name, archive.ReadOptions{}, &got)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), own[:n]) || !f.partial && n != f.segment.Size {
			t.Errorf("%s differs", f.name)
		}
		compared++
	}
	if compared == 0 {
		t.Error("nothing was left to compare with")
	}

	elsewhere, err := archive.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before := &receiver{opts: ReceiveOptions{DSN: r.dsn()}, storage: elsewhere, status: Status{SystemID: "7"}, proven: true}
	if err := before.validate(); err != nil {
		t.Fatal(err)
	}
	var other *ClusterError
	if err := before.run(t.Context()); !errors.As(err, &other) || other.Was != "7" || other.Is != c.now().SystemID {
		t.Errorf("a receiver of another cluster's log: %v", err)
	}
	if found, err := HasLog(t.Context(), elsewhere, c.now().SystemID); found || err != nil {
		t.Errorf("it has begun an archive: %v, %v", found, err)
	}
}
