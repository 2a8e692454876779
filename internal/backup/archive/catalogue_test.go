package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// quickBackup writes a backup of one chunk.
func quickBackup(t *testing.T, repo *Repository, opts Options) {
	t.Helper()
	w, err := Create(t.Context(), repo, opts)
	if err == nil {
		_, err = writeAll(t.Context(), w, map[string][]byte{"globals.sql": []byte("SELECT 1;\n")}, Manifest{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestListTellsStates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo, err := OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := List(t.Context(), repo, time.Now()); err != nil || len(e) != 0 {
		t.Errorf("an empty repository lists %+v, %v", e, err)
	}
	quickBackup(t, repo, Options{ID: "good"})
	quickBackup(t, repo, Options{ID: "broken"})
	if err := os.WriteFile(filepath.Join(dir, "broken", manifestName), []byte("{]"), 0o600); err != nil {
		t.Fatal(err)
	}
	given, err := Create(t.Context(), repo, Options{ID: "given-up"})
	if err != nil {
		t.Fatal(err)
	}
	if err := writeChunk(t.Context(), given, ChunkInfo{Path: "x/y"}, copyRows(1, 5000)); err != nil {
		t.Fatal(err)
	}
	if err := given.Abort(true); err != nil {
		t.Fatal(err)
	}
	running, err := Create(t.Context(), repo, Options{ID: "running"})
	if err != nil {
		t.Fatal(err)
	}
	quickBackup(t, repo, Options{ID: "half-deleted", Encryption: EncryptionOptions{Passphrase: "x", PassphraseWork: 10}})
	if err := os.Remove(filepath.Join(dir, "half-deleted", manifestName)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "somebody", "else"), 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := List(t.Context(), repo, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]State{}
	for _, e := range entries {
		got[e.ID] = e.State
		if e.State != Complete && e.Reason == "" || e.Time.IsZero() || e.Bytes == 0 {
			t.Errorf("%+v tells too little", e)
		}
	}
	want := map[string]State{"good": Complete, "broken": Damaged, "given-up": Incomplete, "running": Running, "half-deleted": Incomplete}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("states are %v, want %v", got, want)
	}

	gone, err := RemoveOrphans(t.Context(), repo, time.Hour, time.Now())
	if err != nil || len(gone) != 0 {
		t.Errorf("within the grace time %q go, %v", gone, err)
	}
	gone, err = RemoveOrphans(t.Context(), repo, time.Hour, time.Now().Add(2*time.Hour))
	slices.Sort(gone)
	if err != nil || fmt.Sprint(gone) != "[given-up half-deleted]" {
		t.Errorf("after the grace time %q go, %v", gone, err)
	}
	if err := Remove(t.Context(), repo, "running"); !errors.Is(err, ErrLocked) {
		t.Errorf("remove what is running: %v", err)
	}
	if err := running.Abort(false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "running")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a backup that was aborted is still there: %v", err)
	}
}

// TestRemovalThatIsInterrupted deletes a backup until its storage fails: what is left is listed,
// and goes with the next prune. A storage that is full, or that may not be written, can be emptied, too.
func TestRemovalThatIsInterrupted(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	quickBackup(t, repo, Options{ID: "b"})
	if err := Remove(t.Context(), NewRepository(&deletesOnce{Storage: repo.Storage()}), "b"); !errors.Is(err, errNoDelete) {
		t.Fatalf("the removal: %v", err)
	}
	e, err := List(t.Context(), repo, time.Now())
	if err != nil || len(e) != 1 || e[0].State != Incomplete || e[0].Reason != "its deletion was cut short" {
		t.Fatalf("%+v, %v", e, err)
	}
	if gone, err := RemoveOrphans(t.Context(), repo, time.Hour, time.Now().Add(2*time.Hour)); err != nil || fmt.Sprint(gone) != "[b]" {
		t.Errorf("%q were removed, %v", gone, err)
	}

	for _, refusal := range []error{ErrFull, ErrDenied} {
		quickBackup(t, repo, Options{ID: "c"})
		if err := Remove(t.Context(), NewRepository(noPut{repo.Storage(), refusal}), "c"); err != nil {
			t.Errorf("from a storage that takes nothing (%v): %v", refusal, err)
		}
	}
	for o, err := range repo.Storage().List(t.Context(), "", true) {
		t.Errorf("%s is left, %v", o.Name, err)
	}
}

// noPut refuses every Put.
type noPut struct {
	Storage
	err error
}

func (s noPut) Put(context.Context, string, []byte) error { return s.err }

var errNoDelete = errors.New("no deletion")

// deletesOnce deletes what its first Delete names, and no more.
type deletesOnce struct {
	Storage
	done bool
}

func (s *deletesOnce) Delete(ctx context.Context, names ...string) error {
	if s.done {
		return errNoDelete
	}
	s.done = true
	return s.Storage.Delete(ctx, names...)
}

// TestTwoBackupsAtOnce writes two backups into one place, with ids of the same second, and with
// the same id.
func TestTwoBackupsAtOnce(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	now := time.Date(2026, 11, 21, 16, 35, 28, 0, time.UTC)
	var all sync.WaitGroup
	var mu sync.Mutex
	locked := 0
	for range 4 {
		all.Go(func() {
			quickBackup(t, repo, Options{Label: "shop", Now: func() time.Time { return now }})
		})
		all.Go(func() {
			w, err := Create(t.Context(), repo, Options{ID: "same"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrLocked):
				locked++
			case err != nil:
				t.Error(err)
			default:
				t.Cleanup(func() { _ = w.Abort(false) })
			}
		})
	}
	all.Wait()
	if locked != 3 {
		t.Errorf("%d of four writers of one id were refused, want 3", locked)
	}
	entries, err := List(t.Context(), repo, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if e.State == Complete {
			ids = append(ids, e.ID)
		}
	}
	slices.Sort(ids)
	if want := "20261121T163528Z-shop 20261121T163528Z-shop-2 20261121T163528Z-shop-3 20261121T163528Z-shop-4"; strings.Join(ids, " ") != want {
		t.Errorf("ids are %q, want %s", ids, want)
	}
}

func TestResumeRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	phrase := phraseKeys()
	w, err := Create(t.Context(), repo, Options{ID: "b", Encryption: phrase.options})
	if err != nil {
		t.Fatal(err)
	}
	if err := writeChunk(t.Context(), w, fixtureInfo("globals.sql"), fixture()["globals.sql"]); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(true); err != nil {
		t.Fatal(err)
	}
	for _, e := range []EncryptionOptions{{}, ageKeys(t).options, {Passphrase: "wrong"}, {Passphrase: "correct horse", HideNames: true}} {
		if w, err := Create(t.Context(), repo, Options{ID: "b", Resume: true, Encryption: e}); err == nil {
			t.Errorf("resumed with %+v", e)
			_ = w.Abort(true)
		}
	}
	w, err = Create(t.Context(), repo, Options{ID: "b", Resume: true, Encryption: phrase.options, Compression: Compression{Codec: LZ4}})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Resumed()) != 1 {
		t.Errorf("resumed %+v", w.Resumed())
	}
	if err := w.Discard(t.Context(), "globals.sql"); err != nil {
		t.Error(err)
	}
	if _, err := writeAll(t.Context(), w, fixture(), fixtureContent()); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), repo, "b", phrase.read)
	if err != nil {
		t.Fatal(err)
	}
	checkContent(t, r, fixture())
	mustVerify(t, r)
	if _, err := Create(t.Context(), repo, Options{ID: "never", Resume: true}); !errors.Is(err, ErrNotExist) {
		t.Errorf("resume of nothing: %v", err)
	}
}

// TestPruneIsNeverHalf deletes a backup from a storage that fails at each step in turn: what is
// left must not look like a complete backup.
func TestPruneIsNeverHalf(t *testing.T) {
	t.Parallel()
	for step := 0; ; step++ {
		repo := localRepo(t)
		quickBackup(t, repo, Options{ID: "b"})
		breaking := &breakingDeletes{Storage: repo.Storage(), left: step}
		entries, err := List(t.Context(), repo, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		gone, err := Prune(t.Context(), NewRepository(breaking), []Decision{{Entry: entries[0]}})
		if err == nil {
			if len(gone) != 1 || step < 3 {
				t.Errorf("after %d deletions %q are gone", step, gone)
			}
			return
		}
		_, err = Open(t.Context(), repo, "b", ReadOptions{})
		if step > 0 && err == nil {
			t.Errorf("after %d deletions the backup opens", step)
		}
		if step > 1 {
			continue
		}
		if r, err := Open(t.Context(), repo, "b", ReadOptions{}); err == nil {
			mustVerify(t, r)
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/retention.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		rule, rest, ok := strings.Cut(line, ":")
		have, want, ok2 := strings.Cut(rest, "->")
		if !ok || !ok2 {
			t.Fatalf("line %q", line)
		}
		checkPlan(t, rule, strings.Fields(have), strings.Fields(want))
	}
}

// checkPlan applies a rule to backups like "2026-11-21T10" or, with a label, a
// state or a parent, "2026-11-21T10/shop!incomplete^2026-11-20T10". "~" marks a
// partial one, "@" its scope.
func checkPlan(t *testing.T, rule string, have, want []string) {
	t.Helper()
	var p Policy
	for _, word := range strings.Fields(rule) {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "last":
			_, err = fmt.Sscan(value, &p.Last)
		case "daily":
			_, err = fmt.Sscan(value, &p.Daily)
		case "weekly":
			_, err = fmt.Sscan(value, &p.Weekly)
		case "monthly":
			_, err = fmt.Sscan(value, &p.Monthly)
		case "yearly":
			_, err = fmt.Sscan(value, &p.Yearly)
		case "within":
			p.Within, err = time.ParseDuration(value)
		case "needed":
			p.Needed = func(e Entry) string {
				if e.ID == value {
					return "a chain needs it"
				}
				return ""
			}
		case "all":
		default:
			t.Fatalf("rule %q", word)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var entries []Entry
	for _, h := range have {
		h, parent, _ := strings.Cut(h, "^")
		h, state, _ := strings.Cut(h, "!")
		h, scope, _ := strings.Cut(h, "@")
		h, partial := strings.CutSuffix(h, "~")
		id, label, _ := strings.Cut(h, "/")
		at, err := time.Parse("2006-01-02T15", id)
		if err != nil {
			t.Fatal(err)
		}
		e := Entry{ID: id, State: Complete, Time: at, Summary: Summary{Label: label, Scope: scope, Partial: partial}}
		if state != "" {
			e.State = State(state)
		}
		if parent != "" {
			e.Summary.Parents = []string{parent}
		}
		entries = append(entries, e)
	}
	var kept []string
	for _, d := range Plan(entries, p, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)) {
		if len(d.Reasons) == 0 {
			t.Errorf("%s: no reason for %s", rule, d.Entry.ID)
		}
		if d.Keep {
			kept = append(kept, d.Entry.ID)
		}
	}
	if !slices.Equal(kept, want) {
		t.Errorf("%s of %q keeps %q, want %q", rule, have, kept, want)
	}
}

// breakingDeletes lets some deletions through.
type breakingDeletes struct {
	Storage
	left int
}

func (b *breakingDeletes) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if b.left == 0 {
			return errors.New("the storage is gone")
		}
		b.left--
		if err := b.Storage.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// awayOnce fails the first request that asks whether an object exists.
type awayOnce struct {
	Storage
	asked atomic.Int64
}

func (a *awayOnce) Stat(ctx context.Context, name string) (ObjectInfo, error) {
	if a.asked.Add(1) == 1 {
		return ObjectInfo{}, errors.New("the storage is away")
	}
	return a.Storage.Stat(ctx, name)
}

// TestLockOutlivesStorage checks that a backup whose storage is unreachable for a moment renews
// its lock afterwards, so that no other run takes it over.
func TestLockOutlivesStorage(t *testing.T) {
	t.Parallel()
	s, err := NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutNew(t.Context(), runName("x/", 1), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	l := &lock{storage: &awayOnce{Storage: s}, dir: "x/", number: 1, stop: func() {}}
	l.gone, l.lose = context.WithCancelCause(context.Background())
	now := time.Now()
	l.renewed.Store(&now)
	ctx, stop := context.WithCancel(t.Context())
	tick := make(chan time.Time)
	l.done.Go(func() { l.renew(ctx, tick) })
	defer l.done.Wait()
	defer stop()
	for range 3 { // when the third is taken, the second is done with
		select {
		case tick <- time.Time{}:
		case <-time.After(time.Minute):
			t.Fatal("nobody renews the lock any more")
		}
	}
	if n, r, err := lastRun(ctx, s, "x/"); err != nil || n != 1 || r.Renewed.IsZero() {
		t.Errorf("run %d, %+v, %v", n, r, err)
	}
}

// silent is a storage that does not answer.
type silent struct{ Storage }

func (silent) Stat(ctx context.Context, _ string) (ObjectInfo, error) {
	<-ctx.Done()
	return ObjectInfo{}, ctx.Err()
}

// A run whose lock cannot be renewed stops writing before another run may take over its backup.
func TestLockLapses(t *testing.T) {
	t.Parallel()
	s, err := NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		l, err := takeLock(t.Context(), silent{s}, "x/", 1, run{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.halt()
		ctx, done := l.while(t.Context())
		defer done()
		<-ctx.Done()
		if lasted := time.Since(begun); lasted >= runPatience || lasted < runLease {
			t.Errorf("the lock was held for %v, want %v", lasted, runLease)
		}
		if err := context.Cause(ctx); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "renewal") {
			t.Errorf("the lock ended with %v", err)
		}
	})
}

// late is a storage that stores a new object only minutes later.
type late struct{ Storage }

func (s late) PutNew(ctx context.Context, name string, data []byte) error {
	time.Sleep(runLease)
	return s.Storage.PutNew(ctx, name, data)
}

// A lock that the storage has stored late is renewed before anything is written under it,
// because its lease counts from the time that is written in it.
func TestLockTakenLate(t *testing.T) {
	t.Parallel()
	s, err := NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := takeLock(t.Context(), late{s}, "x/", 1, run{Renewed: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		defer l.halt()
		if _, r, err := lastRun(t.Context(), s, "x/"); err != nil || time.Since(r.Renewed) != 0 || l.lease() != runLease {
			t.Errorf("it was renewed %v ago, and has %v left: %v", time.Since(r.Renewed), l.lease(), err)
		}
	})
}

// finishing lets a backup finish right after a reader has not found its manifest.
type finishing struct {
	Storage
	finish func()
}

func (f *finishing) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	in, err := f.Storage.Open(ctx, name, offset)
	if strings.HasSuffix(name, manifestName) && errors.Is(err, ErrNotExist) {
		f.finish()
	}
	return in, err
}

// TestListBesideABackupThatFinishes checks that a backup that is just finishing is listed as
// running or complete, never as abandoned, which prune could remove.
func TestListBesideABackupThatFinishes(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	w, err := Create(t.Context(), repo, Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	beside := NewRepository(&finishing{Storage: repo.Storage(), finish: func() {
		if _, err := writeAll(t.Context(), w, map[string][]byte{"globals.sql": []byte("SELECT 1;\n")}, Manifest{}); err != nil {
			t.Error(err)
		}
	}})
	if gone, err := RemoveOrphans(t.Context(), beside, 0, time.Now().Add(time.Hour)); err != nil || len(gone) != 0 {
		t.Errorf("%q were removed, %v", gone, err)
	}
	if e, err := List(t.Context(), repo, time.Now()); err != nil || len(e) != 1 || e[0].State != Complete {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestResumeRefusesOtherLabel checks that --resume compares labels: the second backup of shop
// within a second and the first one of shop-2 may have the same id.
func TestResumeRefusesOtherLabel(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	w, err := Create(t.Context(), repo, Options{ID: "x-shop-2", Label: "shop-2"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(true); err != nil {
		t.Fatal(err)
	}
	if entries, err := List(t.Context(), repo, time.Now()); err != nil || len(entries) != 1 || entries[0].Label != "shop-2" {
		t.Errorf("%+v, %v", entries, err)
	}
	if _, err := Create(t.Context(), repo, Options{ID: "x-shop-2", Label: "shop", Resume: true}); err == nil || !strings.Contains(err.Error(), "shop-2") {
		t.Errorf("resumed as another one: %v", err)
	}
	w, err = Create(t.Context(), repo, Options{ID: "x-shop-2", Label: "shop-2", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
}
