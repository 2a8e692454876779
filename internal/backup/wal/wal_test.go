package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestPointInTime restores one base backup to every kind of target, and starts a
// server on each.
func TestPointInTime(t *testing.T) {
	r := newRig(t)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	// Backups open with the key alone, the log with the passphrase, too.
	recipients := []string{key.Recipient().String()}
	c := archive.Options{Encryption: archive.EncryptionOptions{Recipients: recipients, Passphrase: "open", PassphraseWork: 10}}
	keys := archive.ReadOptions{Identities: [][]byte{[]byte(key.String())}, Passphrase: "open"}
	r.mustCatchUp(ReceiveOptions{Archive: c}) // which makes the slot
	base := r.base(BaseOptions{}, archive.Options{Encryption: archive.EncryptionOptions{Recipients: recipients}})
	r.psql("INSERT INTO marks VALUES (1)")
	at, err := time.Parse("2006-01-02 15:04:05.999999Z07", r.psql("SELECT clock_timestamp() AT TIME ZONE 'UTC' || '+00'"))
	if err != nil {
		t.Fatal(err)
	}
	r.psql("INSERT INTO marks VALUES (2); SELECT pg_switch_wal()")
	lsn := r.position()
	r.psql("INSERT INTO marks VALUES (3); SELECT pg_create_restore_point('here')")
	r.psql("INSERT INTO marks VALUES (4)")
	r.mustCatchUp(ReceiveOptions{Archive: c})
	v, err := Verify(t.Context(), r.storage, base, keys)
	if err != nil {
		t.Fatal(err)
	}
	end, err := pgrepl.ParseLSN(v.End)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		target Target
		marks  string
	}{
		{"end of the log", Target{}, "0,1,2,3,4"},
		{"time", Target{Time: at}, "0,1"},
		{"position", Target{LSN: lsn, Exclusive: true}, "0,1,2"},
		{"name", Target{Name: "here"}, "0,1,2,3"},
		{"immediate", Target{Immediate: true}, "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := *r
			r.t = t
			id, err := ChooseBase(t.Context(), r.repo, r.storage, "", tt.target, keys)
			if err != nil || id != base.ID {
				t.Fatalf("chosen %q, %v", id, err)
			}
			if err := tt.target.Check(t.Context(), r.storage, base, keys); err != nil {
				t.Error(err)
			}
			p, err := r.restored(id, tt.target, keys)
			if err != nil {
				t.Fatal(err)
			}
			if got := psql(t, p, "SELECT string_agg(i::text, ',' ORDER BY i) FROM marks"); got != tt.marks {
				t.Errorf("marks %s, want %s", got, tt.marks)
			}
			if tl := psql(t, p, "SELECT timeline_id FROM pg_control_checkpoint()"); tl == "" {
				t.Error("no timeline")
			}
		})
	}
	// A target is reachable if a server ends its recovery there, and not at the end of the log.
	for name, target := range map[string]Target{
		"the end of the log":    {LSN: end},
		"behind it":             {LSN: end + 1<<40},
		"a later time":          {Time: time.Now().Add(time.Hour)},
		"a name that is nobody": {Name: "nowhere"},
		"another timeline":      {LSN: lsn, Timeline: "7"},
	} {
		if err := target.Check(t.Context(), r.storage, base, keys); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := r.restored(base.ID, Target{LSN: end}, keys); err == nil {
		t.Errorf("a server ends at the end of the log: %s", psql(t, p, "SELECT max(i) FROM marks"))
	}
	t.Run("before the backup", func(t *testing.T) {
		_, err := ChooseBase(t.Context(), r.repo, r.storage, "", Target{LSN: 1}, keys)
		if err == nil || !strings.Contains(err.Error(), "not consistent before") {
			t.Errorf("chosen for a position before: %v", err)
		}
		err = RestoreDir(t.Context(), r.open(base.ID, keys), DirOptions{Dir: t.TempDir(), UID: -1, GID: -1, RestoreCommand: "x", Target: Target{Time: base.Position.Time.Add(-time.Hour)}})
		if err == nil || !strings.Contains(err.Error(), "was not complete before") {
			t.Errorf("restored to a time before: %v", err)
		}
	})
	t.Run("verify", func(t *testing.T) {
		v, err := Verify(t.Context(), r.storage, base, keys)
		if err != nil || !v.OK() || v.Files == 0 {
			t.Errorf("%+v, %v", v, err)
		}
		if end, err := pgrepl.ParseLSN(v.End); err != nil || end < lsn {
			t.Errorf("verified up to %s, want more than %s", v.End, lsn)
		}
		if _, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{Passphrase: "wrong"}); !errors.Is(err, archive.ErrWrongKey) {
			t.Errorf("with a wrong passphrase: %v", err)
		}
		if _, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{}); !errors.Is(err, archive.ErrNoKey) {
			t.Errorf("without a key: %v", err)
		}
	})
}

// TestTimelines follows a server that was restored, and so has gone onto a new
// timeline, in the archive of the old one.
func TestTimelines(t *testing.T) {
	r := newRig(t)
	r.mustCatchUp(ReceiveOptions{})
	base := r.base(BaseOptions{}, archive.Options{})
	r.psql("INSERT INTO marks VALUES (1); SELECT pg_create_restore_point('here')")
	r.psql("INSERT INTO marks VALUES (2)")
	r.mustCatchUp(ReceiveOptions{})
	p, err := r.restored(base.ID, Target{Name: "here"}, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := *r
	second.p = p
	second.psql("INSERT INTO marks VALUES (3)")
	// It knows nothing of the slot: base backups leave slots out.
	second.mustCatchUp(ReceiveOptions{Slot: "second"})
	ranges, err := Ranges(t.Context(), r.storage)
	if err != nil || len(ranges) != 2 || ranges[1].Timeline != 2 {
		t.Errorf("%+v, %v", ranges, err)
	}
	v, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{})
	if err != nil || !v.OK() || v.Timeline != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	for timeline, want := range map[string]string{"latest": "0,1,3", "1": "0,1,2"} {
		p, err := r.restored(base.ID, Target{Timeline: timeline}, archive.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := psql(t, p, "SELECT string_agg(i::text, ',' ORDER BY i) FROM marks"); got != want {
			t.Errorf("timeline %s: marks %s, want %s", timeline, got, want)
		}
	}
}

// TestLatestBehindAMissingHistory: of a timeline between the backup's and the latest one
// nothing is archived, as of a server that was promoted and failed at once. A server that
// looks for the latest timeline by itself stops before it.
func TestLatestBehindAMissingHistory(t *testing.T) {
	r := newRig(t)
	r.mustCatchUp(ReceiveOptions{})
	base := r.base(BaseOptions{}, archive.Options{})
	r.psql("INSERT INTO marks VALUES (1); SELECT pg_create_restore_point('here')")
	r.psql("INSERT INTO marks VALUES (2)")
	r.mustCatchUp(ReceiveOptions{})
	// While there is a history of timeline 2, a server that is promoted takes the next number.
	s, err := openStore(t.Context(), r.storage, base.Server.SystemID)
	if err != nil {
		t.Fatal(err)
	}
	const failed = "00000002.history"
	if err := s.put(t.Context(), failed, strings.NewReader("1\t0/1\tfailed\n"), archive.Position{Timeline: 2}); err != nil {
		t.Fatal(err)
	}
	p, err := r.restored(base.ID, Target{Name: "here", Timeline: "current"}, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.storage.Delete(t.Context(), s.dir()+failed+suffix); err != nil {
		t.Fatal(err)
	}
	second := *r
	second.p = p
	second.psql("INSERT INTO marks VALUES (3)")
	second.mustCatchUp(ReceiveOptions{Slot: "second"})
	v, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{})
	if err != nil || !v.OK() || v.Timeline != 3 {
		t.Fatalf("%+v, %v", v, err)
	}
	target, err := Target{}.ForServer(t.Context(), r.storage, base, archive.ReadOptions{})
	if err != nil || target.Timeline != "3" {
		t.Fatalf("%+v, %v", target, err)
	}
	if p, err = r.restored(base.ID, target, archive.ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := psql(t, p, "SELECT string_agg(i::text, ',' ORDER BY i) FROM marks"); got != "0,1,3" {
		t.Errorf("marks %s", got)
	}
}

// TestForkInAnEarlierSegment has log archived that a server does not have which is
// promoted then: its timeline leaves the old one segments before the end of what is kept.
func TestForkInAnEarlierSegment(t *testing.T) {
	testkit.Long(t, "restores and promotes servers")
	r := newRig(t)
	r.mustCatchUp(ReceiveOptions{})
	base := r.base(BaseOptions{}, archive.Options{})
	r.psql("INSERT INTO marks VALUES (1); SELECT pg_switch_wal()")
	r.psql("INSERT INTO marks VALUES (2); SELECT pg_create_restore_point('here')")
	for i := range 3 {
		r.psql(fmt.Sprintf("SELECT pg_switch_wal(); INSERT INTO marks VALUES (%d)", 10+i))
	}
	r.mustCatchUp(ReceiveOptions{})
	abandoned := r.base(BaseOptions{}, archive.Options{})
	p, err := r.restored(base.ID, Target{Name: "here"}, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := *r
	second.p = p
	second.psql("INSERT INTO marks VALUES (3)")
	second.mustCatchUp(ReceiveOptions{Slot: "second"})
	second.psql("INSERT INTO marks VALUES (4)")
	second.mustCatchUp(ReceiveOptions{Slot: "second"})
	v, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{})
	if err != nil || !v.OK() || v.Timeline != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	v, err = Verify(t.Context(), r.storage, abandoned, archive.ReadOptions{})
	if err != nil || v.Timeline != 1 || len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "the log continues with timeline 2") ||
		!strings.Contains(v.Problems[0], "or remove wal/"+abandoned.Server.SystemID+"/00000002* if") {
		t.Errorf("of the base backup that timeline 2 does not come from: %+v, %v", v, err)
	}
	// The younger base is on no way to timeline 2.
	for timeline, want := range map[string]string{"": base.ID, "2": base.ID, "1": abandoned.ID, "current": abandoned.ID} {
		id, err := ChooseBase(t.Context(), r.repo, r.storage, "", Target{Timeline: timeline}, archive.ReadOptions{})
		if err != nil || id != want {
			t.Errorf("timeline %q: chosen %q, %v, want %q", timeline, id, err, want)
		}
	}
	for _, timeline := range []string{"", "2", "1", "current"} {
		id, err := ChooseBase(t.Context(), r.repo, r.storage, "", Target{Name: "here", Timeline: timeline}, archive.ReadOptions{})
		if err != nil || id != base.ID {
			t.Errorf("for a name on timeline %q: chosen %q, %v", timeline, id, err)
		}
	}
	p, err = r.restored(base.ID, Target{}, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := psql(t, p, "SELECT string_agg(i::text, ',' ORDER BY i) FROM marks"); got != "0,1,2,3,4" {
		t.Errorf("marks %s", got)
	}
}

// TestNameFindsItsBase has names given between base backups, and looks for the backup
// from which each can be reached.
func TestNameFindsItsBase(t *testing.T) {
	testkit.Long(t, "makes several base backups")
	r := newRig(t)
	var keys archive.ReadOptions
	r.mustCatchUp(ReceiveOptions{})
	r.psql("SELECT pg_create_restore_point('too early')")
	var bases []string
	at := map[string]string{}
	point := func(name string) { at[name] = r.psql("SELECT pg_create_restore_point('" + name + "')") }
	for i := range 3 {
		bases = append(bases, r.base(BaseOptions{}, archive.Options{}).ID)
		point(fmt.Sprint("after ", i))
		r.psql("INSERT INTO marks SELECT g FROM generate_series(" + fmt.Sprint(1+i*20000) + ", " + fmt.Sprint(i*20000+10000) + ") g; SELECT pg_switch_wal()")
		point(fmt.Sprint("again ", i%2))
	}
	r.psql("SELECT pg_create_restore_point('twice')")
	r.psql("INSERT INTO marks VALUES (-1); SELECT pg_create_restore_point('twice')")
	// Records of each length, so that some points lie across pages. The server flushes
	// them with the next commit.
	r.psql("DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM pg_logical_emit_message(false, 'x', repeat('x', i * 31)), pg_create_restore_point('many'); END LOOP; END $$; INSERT INTO marks VALUES (-2)")
	r.mustCatchUp(ReceiveOptions{})
	choose := func(name string) (string, error) {
		return ChooseBase(t.Context(), r.repo, r.storage, "", Target{Name: name}, keys)
	}
	for name, want := range map[string]int{"after 0": 0, "after 1": 1, "after 2": 2, "again 1": 1, "again 0": 2} {
		if id, err := choose(name); err != nil || id != bases[want] {
			t.Errorf("%s: chosen %q, %v, want %q", name, id, err, bases[want])
		}
	}
	for name, want := range map[string]string{"too early": "no restore point", "never": "no restore point", "twice": "given 2 times", "many": "given 300 times"} {
		if _, err := choose(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := r.restored(bases[1], Target{Name: "again 1"}, keys)
	if err != nil {
		t.Fatal(err)
	}
	if got := psql(t, p, "SELECT count(*) FROM marks"); got != "20001" {
		t.Errorf("%s rows", got)
	}
	// The log from the second backup on is not whole: a point behind the hole is out of reach.
	segment := func(name string) string {
		return r.dir + "/wal/" + r.psql("SELECT system_identifier FROM pg_control_system()") + "/" + r.psql("SELECT pg_walfile_name('"+at[name]+"')") + ".tar"
	}
	if err := os.Remove(segment("again 1")); err != nil {
		t.Fatal(err)
	}
	if _, err := choose("again 1"); err == nil || !strings.Contains(err.Error(), "no restore point") {
		t.Errorf("behind a hole: %v", err)
	}
	if id, err := choose("after 1"); err != nil || id != bases[1] {
		t.Errorf("before a hole: chosen %q, %v", id, err)
	}
}

// TestNamesBeforeABackupOfAStandby: a backup of a standby begins within a segment, and a point
// before that belongs to the backups before it.
func TestNamesBeforeABackupOfAStandby(t *testing.T) {
	r := newRig(t)
	r.psql("ALTER SYSTEM SET full_page_writes = on") // as backups of standbys need it
	r.psql("SELECT pg_reload_conf(); CHECKPOINT")
	r.mustCatchUp(ReceiveOptions{})
	first := r.base(BaseOptions{}, archive.Options{})
	standby := labtest.Standby(t, r.p, lab.PostgresConfig{
		Durability: lab.Fast, SharedBuffers: "16MB", Preload: []string{},
		Settings: map[string]string{"wal_level": "replica", "max_wal_senders": "8", "max_replication_slots": "5"},
	})
	r.psql("SELECT pg_switch_wal(); SELECT pg_create_restore_point('both'); SELECT pg_create_restore_point('before'); CHECKPOINT")
	at := r.psql("SELECT pg_current_wal_flush_lsn()")
	testkit.Eventually(t, "the standby is there", func() bool {
		return psql(t, standby, "SELECT pg_last_wal_replay_lsn() >= '"+at+"'") == "t"
	})
	psql(t, standby, "CHECKPOINT")
	of := *r
	of.p = standby
	second := of.base(BaseOptions{}, archive.Options{})
	r.psql("INSERT INTO marks VALUES (1); SELECT pg_create_restore_point('both')")
	r.psql("INSERT INTO marks VALUES (2)")
	r.mustCatchUp(ReceiveOptions{})
	for name, want := range map[string]string{"both": second.ID, "before": first.ID} {
		id, err := ChooseBase(t.Context(), r.repo, r.storage, "", Target{Name: name}, archive.ReadOptions{})
		if err != nil || id != want {
			t.Errorf("%s: chosen %q, %v, want %q", name, id, err, want)
		}
	}
	p, err := r.restored(second.ID, Target{Name: "both"}, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := psql(t, p, "SELECT string_agg(i::text, ',' ORDER BY i) FROM marks"); got != "0,1" {
		t.Errorf("marks %s", got)
	}
}

// TestGap removes log from the server that is not archived.
func TestGap(t *testing.T) {
	r := newRig(t)
	r.mustCatchUp(ReceiveOptions{Archive: archive.Options{Compression: archive.Compression{Codec: archive.Gzip}}})
	base := r.base(BaseOptions{}, archive.Options{})
	// So much log makes the server begin a checkpoint by itself, which removes what
	// no slot keeps. Behind one that has ended, a single segment makes it begin none.
	r.psql("CHECKPOINT")
	if err := DropSlot(t.Context(), r.dsn(), DefaultSlot); err != nil {
		t.Fatal(err)
	}
	r.psql("SELECT pg_switch_wal()")
	r.mustCatchUp(ReceiveOptions{}) // a slot again, and a segment that is complete
	if err := DropSlot(t.Context(), r.dsn(), DefaultSlot); err != nil {
		t.Fatal(err)
	}
	first := pgrepl.SegmentAt(1, r.position(), 16<<20)
	testkit.Eventually(t, "the server removes log", func() bool {
		r.psql("INSERT INTO marks SELECT max(i) + 1 FROM marks; SELECT pg_switch_wal(); CHECKPOINT")
		_, err := os.Stat(filepath.Join(r.p.DataDir(), "pg_wal", first.Name()))
		return errors.Is(err, os.ErrNotExist)
	})
	err := r.catchUp(ReceiveOptions{})
	var gap *GapError
	if !errors.As(err, &gap) || !strings.Contains(err.Error(), "--allow-gap") {
		t.Fatalf("over a gap: %v", err)
	}
	r.mustCatchUp(ReceiveOptions{AllowGap: true})
	v, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{})
	if err != nil || v.OK() || !strings.Contains(v.Problems[0], "log is missing") {
		t.Errorf("%+v, %v", v, err)
	}
	if ranges, err := Ranges(t.Context(), r.storage); err != nil || len(ranges) != 2 {
		t.Errorf("%+v, %v", ranges, err)
	}

	// A base backup from behind the gap needs nothing of what is before it.
	r.psql("SELECT pg_switch_wal()")
	next := r.base(BaseOptions{}, archive.Options{})
	r.psql("SELECT pg_switch_wal()")
	r.mustCatchUp(ReceiveOptions{})
	entries, err := archive.List(t.Context(), r.repo, time.Now())
	if err != nil || len(entries) != 2 {
		t.Fatalf("%+v, %v", entries, err)
	}
	would, err := Prune(t.Context(), r.repo, entries[1:], true)
	if err != nil || would == 0 {
		t.Errorf("would prune %d, %v", would, err)
	}
	if n, err := Prune(t.Context(), r.repo, entries[1:], false); n != would || err != nil {
		t.Errorf("pruned %d, want %d: %v", n, would, err)
	}
	if v, err := Verify(t.Context(), r.storage, next, archive.ReadOptions{}); err != nil || !v.OK() {
		t.Errorf("%+v, %v", v, err)
	}
	if ranges, err := Ranges(t.Context(), r.storage); err != nil || len(ranges) != 1 {
		t.Errorf("%+v, %v", ranges, err)
	}
}

// TestSegmentThatIsThrownAway knows a segment's removal from other errors of files,
// also when the server notices it after it has read the segment.
func TestSegmentThatIsThrownAway(t *testing.T) {
	for want, errs := range map[bool][]pgwire.Error{
		true: {
			{Code: "58P01", Routine: "WalSndSegmentOpen"},
			{Code: "58P01", Routine: "CheckXLogRemoved"},
			{Code: "XX000", Routine: "CheckXLogRemoved"},
		},
		false: {{Code: "XX000", Routine: "WALReadRaiseError"}, {Code: "58030", Routine: "WalSndSegmentOpen"}, {Code: "57P01"}},
	} {
		for _, err := range errs {
			if thrownAway(&err) != want {
				t.Errorf("%s in %s: %v", err.Code, err.Routine, !want)
			}
		}
	}
}

// TestFetchTellsMissingFromBroken: a server takes what is missing for the end of
// the log, and must not take anything else for it.
func TestFetchTellsMissingFromBroken(t *testing.T) {
	r := newRig(t)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	r.psql("SELECT pg_switch_wal()")
	r.mustCatchUp(ReceiveOptions{Archive: archive.Options{Encryption: archive.EncryptionOptions{Recipients: []string{key.Recipient().String()}}}})
	r.psql("SELECT pg_switch_wal()")
	r.mustCatchUp(ReceiveOptions{Archive: archive.Options{Encryption: archive.EncryptionOptions{Recipients: []string{key.Recipient().String()}}}})
	ranges, err := Ranges(t.Context(), r.storage)
	if err != nil || len(ranges) != 1 {
		t.Fatal(ranges, err)
	}
	system, first := ranges[0].SystemID, ranges[0].First
	keys := archive.ReadOptions{Identities: [][]byte{[]byte(key.String())}}
	fetch := func(system, name string, keys archive.ReadOptions) (int, error) {
		var b bytes.Buffer
		err := Fetch(t.Context(), r.storage, system, name, keys, &b)
		return b.Len(), err
	}
	if n, err := fetch(system, first, keys); n != 16<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, name := range []string{"00000009.history", "0000000100000000000000FF", "000000010000000000000001.00000028.backup", "../x", first + ".partial"} {
		if _, err := fetch(system, name, keys); !errors.Is(err, archive.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := fetch("123", first, keys); err == nil || errors.Is(err, archive.ErrNotExist) {
		t.Errorf("of a cluster that is not there: %v", err)
	}
	if _, err := fetch(system, first, archive.ReadOptions{}); !errors.Is(err, archive.ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	name := filepath.Join(r.dir, root, system, first+suffix)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		bytes []byte
	}{
		{"cut", whole[:len(whole)/2]},
		{"empty", nil},
		{"changed", append(append(bytes.Clone(whole[:2000]), whole[2000]^1), whole[2001:]...)},
	} {
		if err := os.WriteFile(name, c.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := fetch(system, first, keys); err == nil || errors.Is(err, archive.ErrNotExist) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	// A file in another one's place.
	if err := os.WriteFile(filepath.Join(r.dir, root, system, "0000000100000000000000F0.tar"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(system, "0000000100000000000000F0", keys); !errors.Is(err, archive.ErrSwapped) {
		t.Errorf("in another one's place: %v", err)
	}
}

// TestDirRefuses: a data directory is made of a whole base backup and of nothing
// else, into an empty place.
func TestDirRefuses(t *testing.T) {
	r := newRig(t)
	base := r.base(BaseOptions{NoWAL: true}, archive.Options{})
	in := r.open(base.ID, archive.ReadOptions{})
	refuse := func(opts DirOptions, words string) {
		t.Helper()
		opts.UID, opts.GID = -1, -1
		if err := RestoreDir(t.Context(), in, opts); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, want %q", opts, err, words)
		}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refuse(DirOptions{Dir: full, RestoreCommand: "false"}, "not empty")
	refuse(DirOptions{Dir: t.TempDir()}, "holds no log")
	refuse(DirOptions{Dir: t.TempDir(), Target: Target{Immediate: true}}, "a target needs log")
	refuse(DirOptions{Dir: t.TempDir(), RestoreCommand: "false", Tablespaces: map[string]string{"/a": "/b"}}, "no tablespace in /a")
	if v, err := Verify(t.Context(), r.storage, base, archive.ReadOptions{}); err != nil || v.OK() {
		t.Errorf("without any log: %+v, %v", v, err)
	}

	// One whose files are not whole has no pg_control, and starts no server.
	pieces, err := filepath.Glob(filepath.Join(r.dir, base.ID, "base/base.tar/*"))
	if err != nil || len(pieces) != 1 {
		t.Fatal(pieces, err)
	}
	b, err := os.ReadFile(pieces[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-100] ^= 1
	if err := os.WriteFile(pieces[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	err = RestoreDir(t.Context(), in, DirOptions{Dir: dir, UID: -1, GID: -1, RestoreCommand: "false"})
	if !errors.Is(err, archive.ErrCorrupt) {
		t.Errorf("of a damaged backup: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, controlFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", controlFile, err)
	}
}

// TestTablespaces moves one.
func TestTablespaces(t *testing.T) {
	r := newRig(t)
	where := filepath.Join(filepath.Dir(r.p.DataDir()), "space")
	if err := os.Mkdir(where, 0o700); err != nil {
		t.Fatal(err)
	}
	own, err := os.Stat(r.p.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	r.chownLike(where, own)
	r.psql(fmt.Sprintf("CREATE TABLESPACE space LOCATION '%s'", where))
	r.psql("CREATE TABLE far TABLESPACE space AS SELECT i FROM generate_series(1, 1000) i")
	base := r.base(BaseOptions{}, archive.Options{})
	in := r.open(base.ID, archive.ReadOptions{})
	err = RestoreDir(t.Context(), in, DirOptions{Dir: t.TempDir(), UID: -1, GID: -1})
	if err == nil || !strings.Contains(err.Error(), "--tablespace-mapping") {
		t.Errorf("onto the source's own: %v", err)
	}
	dir, to := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "moved \\ far")
	if err := RestoreDir(t.Context(), in, DirOptions{Dir: dir, UID: -1, GID: -1, Tablespaces: map[string]string{where: to}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "tablespace_map"))
	if err != nil || !strings.Contains(string(text), strings.ReplaceAll(to, `\`, `\\`)) {
		t.Errorf("tablespace_map: %q, %v", text, err)
	}
	if found, err := filepath.Glob(filepath.Join(filepath.Dir(to), "*", "PG_*", "*", "*")); err != nil || len(found) == 0 {
		t.Errorf("moved: %v, %v", found, err)
	}
}

func TestTargetsAreValidated(t *testing.T) {
	for words, target := range map[string]Target{
		"one of them":        {Immediate: true, Name: "x"},
		"--target-exclusive": {Name: "x", Exclusive: true},
		"--target-timeline":  {Timeline: "0"},
		"--target-action":    {Action: "sleep"},
		"--target-name":      {Name: "a\nb"},
	} {
		if err := target.Validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, want %q", target, err, words)
		}
	}
	settings := Target{Name: "it's", Timeline: "010"}.settings("x")
	if last := settings[len(settings)-1]; last != [2]string{"recovery_target_name", "it's"} {
		t.Errorf("the target that is set comes last, not %v", last)
	}
	if !slices.Contains(settings, [2]string{"recovery_target_timeline", "10"}) {
		t.Errorf("timeline 010 is not ten to the server, which would read eight: %v", settings)
	}
}

// FuzzUnpack reads arbitrary tar files: nothing may be written outside the directory.
func FuzzUnpack(f *testing.F) {
	f.Add("base/1/2", byte('0'), "x")
	f.Add("../evil", byte('0'), "x")
	f.Add("/etc/evil", byte('0'), "x")
	f.Add("link", byte('2'), "../..")
	f.Add("global/pg_control", byte('0'), "x")
	f.Add("tablespace_map", byte('0'), "16385 /far\n")
	f.Fuzz(func(t *testing.T, name string, kind byte, content string) {
		outer := t.TempDir()
		d := &dirRestore{DirOptions: DirOptions{Dir: filepath.Join(outer, "data"), UID: -1, GID: -1}, locations: map[string]string{"16385": "/b"}}
		rt, err := d.emptyDir(d.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close()
		_ = d.entry(rt, tarHeader(name, kind), io.LimitReader(strings.NewReader(content), 1<<16)) // whether it is accepted does not matter
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 1 {
			t.Fatalf("%q wrote %v, %v", name, entries, err)
		}
	})
}
