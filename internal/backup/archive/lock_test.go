package archive

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// staleWriter has written one chunk and keeps another one open. Then it has stood still
// for so long that others took it for dead.
func staleWriter(t *testing.T) (*Repository, *Writer, *ChunkWriter) {
	t.Helper()
	repo := localRepo(t)
	w, err := Create(t.Context(), repo, Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := writeChunk(t.Context(), w, ChunkInfo{Path: "db/first"}, []byte("first")); err != nil {
		t.Fatal(err)
	}
	open, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/open"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Write([]byte("open")); err != nil {
		t.Fatal(err)
	}
	w.lock.mu.Lock()
	w.lock.checked = time.Now().Add(-time.Hour)
	w.lock.mu.Unlock()
	return repo, w, open
}

// TestWriterThatLostItsLock writes nothing into a backup that another run continues,
// and leaves to that one what there is.
func TestWriterThatLostItsLock(t *testing.T) {
	t.Parallel()
	repo, w, open := staleWriter(t)
	s := repo.Storage()
	if err := s.PutNew(t.Context(), runName(w.dir, 2), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := open.Close(); !errors.Is(err, ErrLocked) {
		t.Errorf("a chunk that was open is stored: %v", err)
	}
	if _, err := w.Chunk(t.Context(), ChunkInfo{Path: "db/next"}); !errors.Is(err, ErrLocked) {
		t.Errorf("a chunk is begun: %v", err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{runName(w.dir, 1), runName(w.dir, 2), w.dir + w.fileName("db/first")} {
		if _, err := s.Stat(t.Context(), name); err != nil {
			t.Errorf("of the other run's backup: %v", err)
		}
	}
	if _, err := s.Stat(t.Context(), w.dir+w.fileName("db/open")); !errors.Is(err, ErrNotExist) {
		t.Errorf("the chunk that was open: %v", err)
	}
}

// TestLostLockEndsOpenChunks does not wait for their end.
func TestLostLockEndsOpenChunks(t *testing.T) {
	t.Parallel()
	repo, w, open := staleWriter(t)
	if err := repo.Storage().PutNew(t.Context(), runName(w.dir, 2), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := w.lock.check(t.Context()); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	<-open.ctx.Done()
	if err := w.Abort(true); err != nil {
		t.Fatal(err)
	}
}

// TestAbortAfterALostLock: it is the first that looks.
func TestAbortAfterALostLock(t *testing.T) {
	t.Parallel()
	repo, w, _ := staleWriter(t)
	if err := repo.Storage().PutNew(t.Context(), runName(w.dir, 2), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Storage().Stat(t.Context(), w.dir+w.fileName("db/first")); err != nil {
		t.Errorf("of the other run's backup: %v", err)
	}
}

// TestLockOfAFinishedBackup: the run that took over has finished the backup, and has
// removed all locks.
func TestLockOfAFinishedBackup(t *testing.T) {
	t.Parallel()
	repo, w, open := staleWriter(t)
	if err := repo.Storage().Delete(t.Context(), runName(w.dir, 1)); err != nil {
		t.Fatal(err)
	}
	if err := open.Close(); !errors.Is(err, ErrLocked) {
		t.Errorf("a chunk is stored: %v", err)
	}
	if _, err := w.Finish(t.Context(), Manifest{}); !errors.Is(err, ErrLocked) {
		t.Errorf("a manifest is written: %v", err)
	}
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Storage().Stat(t.Context(), w.dir+w.fileName("db/first")); err != nil {
		t.Errorf("of the other run's backup: %v", err)
	}
}

// lapsing is a storage during whose work on an object the lock lapses.
type lapsing struct {
	Storage
	lock *lock
}

func (s lapsing) Create(ctx context.Context, _ string) (ObjectWriter, error) {
	s.lock.lose(errLapsed{"b", runLease, runLease, context.DeadlineExceeded})
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestLockLapsesWhileTheBackupFinishes: the error says so.
func TestLockLapsesWhileTheBackupFinishes(t *testing.T) {
	t.Parallel()
	w, err := Create(t.Context(), localRepo(t), Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	w.storage = lapsing{w.storage, w.lock}
	if _, err := w.Finish(t.Context(), Manifest{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "renewal") {
		t.Errorf("the error is %v", err)
	}
	if err := w.Abort(true); err != nil {
		t.Fatal(err)
	}
}

// TestLapsedLockSaysWhy: where the clock was set the storage is not to blame.
func TestLapsedLockSaysWhy(t *testing.T) {
	t.Parallel()
	for ran, want := range map[time.Duration]string{
		runLease:    "keep lock of b: the storage has taken no renewal for 4m0s (away), ",
		time.Minute: "since the last renewal 1h0m0s have passed by the clock, weir ran for 1m0s, and the next renewal failed (away), ",
	} {
		if got := (errLapsed{"b", ran, time.Hour, errors.New("away")}).Error(); !strings.Contains(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// unreachable does not answer questions about a manifest.
type unreachable struct{ Storage }

func (s unreachable) Stat(ctx context.Context, name string) (ObjectInfo, error) {
	if strings.HasSuffix(name, manifestName) {
		return ObjectInfo{}, errors.New("away")
	}
	return s.Storage.Stat(ctx, name)
}

// TestLockStaysWhereTheStorageIsAway: another run may have taken over by then.
func TestLockStaysWhereTheStorageIsAway(t *testing.T) {
	t.Parallel()
	repo := localRepo(t)
	s := repo.storage
	repo.storage = unreachable{s}
	if _, err := Create(t.Context(), repo, Options{ID: "b"}); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("the error is %v", err)
	}
	if _, err := s.Stat(t.Context(), runName("b/", 1)); err != nil {
		t.Errorf("the lock: %v", err)
	}
}

// deadlines notes until when objects may be deleted.
type deadlines struct {
	Storage
	last time.Time
}

func (s *deadlines) Delete(ctx context.Context, names ...string) error {
	s.last, _ = ctx.Deadline()
	return s.Storage.Delete(ctx, names...)
}

// TestAbortEndsWithTheLease: after its end another run may write what this one deletes.
func TestAbortEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w, err := Create(t.Context(), localRepo(t), Options{ID: "b"})
	if err != nil {
		t.Fatal(err)
	}
	s := &deadlines{Storage: w.storage}
	w.storage = s
	renewed := time.Now().Add(-runLease / 2)
	w.lock.renewed.Store(&renewed)
	if err := w.Abort(false); err != nil {
		t.Fatal(err)
	}
	if end := renewed.Add(runLease + time.Second); s.last.IsZero() || s.last.After(end) {
		t.Errorf("objects may be deleted until %v, and the lease ends at %v", s.last, end)
	}
}
