package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A State is the state of a backup in a repository.
type State string

// The states.
const (
	Complete   State = "complete"
	Running    State = "running"    // no manifest, and a writer renews its lock
	Incomplete State = "incomplete" // no manifest, and no process writes it
	Damaged    State = "damaged"    // a manifest that cannot be read
)

// An Entry is one backup in a catalogue.
type Entry struct {
	ID    string `json:"id"`    // the name of the backup
	State State  `json:"state"` // complete; running: its writer is alive; incomplete: its writer is not; damaged: its manifest cannot be read

	// Reason says why a backup is not complete.
	Reason string `json:"reason,omitempty"`

	// Label is the label of an unfinished backup, from its lock if there is one. That of a
	// complete one is in its Summary.
	Label string `json:"label,omitempty"`

	// Summary is the head of the manifest; zero unless complete.
	Summary Summary `json:"summary,omitzero"`

	// Bytes is how much storage the backup uses: for a complete backup by its manifest,
	// otherwise by the sizes of its objects.
	Bytes int64 `json:"bytes"`

	// Time is when the backup started, by its manifest or its lock, or, to the second, by an ID
	// that weir generated. If none of these tells, it is when the youngest object was written.
	Time time.Time `json:"time"`

	// Touched is when an unfinished backup was last written to; zero for a complete one.
	Touched time.Time `json:"touched,omitzero"`
}

// List returns the backups of a repository, oldest first. It reads only the heads of manifests,
// and lists the objects of backups without one.
func List(ctx context.Context, repo *Repository, now time.Time) ([]Entry, error) {
	var entries []Entry
	for o, err := range repo.storage.List(ctx, "", false) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", repo, err)
		}
		id, isDir := strings.CutSuffix(o.Name, "/")
		if !isDir || checkID("id", id) != nil {
			continue
		}
		e, ours, err := describe(ctx, repo.storage, id, now)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", repo, err)
		}
		if ours {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return entries, nil
}

// describe describes a directory of a repository; the bool is false if it is not a backup.
func describe(ctx context.Context, s Storage, id string, now time.Time) (Entry, bool, error) {
	e := Entry{ID: id}
	dir := id + "/"
	in, err := s.Open(ctx, dir+manifestName, 0)
	if errors.Is(err, ErrNotExist) {
		return describeUnfinished(ctx, s, e, now)
	}
	if err != nil {
		return e, false, err
	}
	sum, err := ReadSummary(in)
	if closing := in.Close(); err == nil {
		err = closing
	}
	if err == nil && sum.ID != id {
		err = fmt.Errorf("the manifest is of backup %s", sum.ID)
	}
	if err != nil {
		if ctx.Err() != nil {
			return e, false, err
		}
		info, statErr := s.Stat(ctx, dir+manifestName)
		e.State, e.Reason, e.Bytes, e.Time = Damaged, err.Error(), info.Size, startOf(id, info.Modified)
		return e, true, statErr
	}
	e.State, e.Summary, e.Bytes, e.Time = Complete, sum, sum.Totals.StoredBytes, sum.Started
	return e, true, nil
}

// startOf returns when a backup without that information started; written is when one of its
// objects was written, which is too late if the repository was copied. An ID has the time to
// the second; within that second written decides, and after it the end of the second.
func startOf(id string, written time.Time) time.Time {
	begin, _, ok := parseID(id)
	if !ok {
		return written
	}
	end := begin.Add(time.Second - 1)
	switch {
	case written.Before(begin):
		return begin
	case written.After(end):
		return end
	}
	return written
}

// describeUnfinished describes a backup without a manifest. A directory with neither lock nor
// journal nor chunks is not a backup, and is ignored.
func describeUnfinished(ctx context.Context, s Storage, e Entry, now time.Time) (Entry, bool, error) {
	dir := e.ID + "/"
	ours := false
	for o, err := range s.List(ctx, dir, true) {
		if err != nil {
			return e, false, err
		}
		name := strings.TrimPrefix(o.Name, dir)
		ours = ours || reserved(name) && name != sumsName
		e.Bytes += o.Size
		if o.Modified.After(e.Touched) {
			e.Touched = o.Modified
		}
	}
	if !ours {
		return e, false, nil
	}
	n, r, err := lastRun(ctx, s, dir)
	if err != nil {
		return e, false, err
	}
	if n == 0 || !r.alive(now) {
		// Its writer may have finished since the manifest was looked for.
		switch _, err := s.Stat(ctx, dir+manifestName); {
		case err == nil:
			return describe(ctx, s, e.ID, now)
		case !errors.Is(err, ErrNotExist):
			return e, false, err
		}
	}
	e.State, e.Label, e.Time = Incomplete, r.Label, startOf(e.ID, e.Touched)
	if !r.Begun.IsZero() {
		e.Time = r.Begun
	}
	switch {
	case n > 0 && r.alive(now):
		e.State, e.Reason = Running, "it is being written"
	case n > 0 && !r.Ended.IsZero():
		e.Reason = "it was stopped; --resume continues it"
	case n > 0:
		e.Reason = "its writer died; --resume continues it"
	default:
		e.Reason = "its deletion was cut short"
	}
	return e, true, nil
}

// Prune deletes the backups that plan does not keep, each manifest first, so that a backup
// whose deletion was interrupted is incomplete and does not look whole. Children are deleted
// before their parents. It returns the ids of the deleted backups, even with an error.
func Prune(ctx context.Context, repo *Repository, plan []Decision) ([]string, error) {
	var gone []string
	for _, d := range slices.Backward(plan) {
		if d.Keep {
			continue
		}
		if d.Entry.State != Complete {
			return gone, fmt.Errorf("prune backup %s: it is %s; only complete backups are pruned", d.Entry.ID, d.Entry.State)
		}
		if err := Remove(ctx, repo, d.Entry.ID); err != nil {
			return gone, err
		}
		gone = append(gone, d.Entry.ID)
	}
	return gone, nil
}

// Remove deletes one backup in any state, unless a process is writing it.
func Remove(ctx context.Context, repo *Repository, id string) error {
	if err := checkID("id", id); err != nil {
		return fmt.Errorf("remove backup: %w", err)
	}
	n, r, err := lastRun(ctx, repo.storage, id+"/")
	if err == nil && r.alive(time.Now()) {
		_, err = repo.storage.Stat(ctx, id+"/"+manifestName)
		if errors.Is(err, ErrNotExist) {
			err = ErrLocked
		}
	}
	if err == nil && n == 0 {
		// Without its manifest a complete backup has nothing that shows what the rest is. A full
		// storage may not take a mark, and has to be emptied without. Credentials that may list,
		// read and delete suffice.
		if err = repo.storage.Put(ctx, id+"/"+removedName, nil); errors.Is(err, ErrFull) || errors.Is(err, ErrDenied) {
			err = nil
		}
	}
	if err == nil {
		err = removeBackup(ctx, repo.storage, id+"/")
	}
	if err != nil {
		return fmt.Errorf("remove backup %s: %w", id, err)
	}
	return nil
}

// RemoveOrphans deletes unfinished backups that have made no progress for grace, and temporary
// files and uploads of dead writers. It returns the ids of the backups, even with an error.
func RemoveOrphans(ctx context.Context, repo *Repository, grace time.Duration, now time.Time) ([]string, error) {
	entries, err := List(ctx, repo, now)
	if err != nil {
		return nil, err
	}
	var gone []string
	running := false
	for _, e := range entries {
		running = running || e.State == Running
		if e.State != Incomplete || now.Sub(e.Touched) < grace {
			continue
		}
		if err := Remove(ctx, repo, e.ID); err != nil {
			return gone, err
		}
		gone = append(gone, e.ID)
	}
	// An upload in progress looks like one of a dead writer, except for its age; while a backup
	// runs, age proves nothing either.
	if running {
		return gone, nil
	}
	if _, err := repo.storage.Clean(ctx, "", now.Add(-grace)); err != nil {
		return gone, fmt.Errorf("remove what dead writers left: %w", err)
	}
	return gone, nil
}

// farFuture is after everything.
var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
