package wal

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Finding is the result of [Verify] for one file.
type Finding struct {
	File    string            `json:"file"`              // its name
	Kind    string            `json:"kind"`              // identity, segment, snapshot, part, spare, other
	Bytes   int64             `json:"bytes,omitempty"`   // its length
	Problem string            `json:"problem,omitempty"` // what is wrong, empty if nothing is
	Offset  int64             `json:"offset,omitempty"`  // in bytes, where the problem was found
	Rounds  uint64            `json:"rounds,omitempty"`  // groups of records that were flushed together
	Records map[string]uint64 `json:"records,omitempty"` // by kind
	First   uint64            `json:"first,omitempty"`   // of a segment's entries: the lowest index, replaced ones included
	Last    uint64            `json:"last,omitempty"`    // the highest; of a snapshot: its index
	Term    uint64            `json:"term,omitempty"`    // highest term of the entries; of a snapshot: that of Last
	Torn    *Torn             `json:"torn,omitempty"`    // a write that a crash cut short, which is no problem
}

// Summary is the result of [Verify] for the directory.
type Summary struct {
	Identity  Identity          `json:"identity"`  // of the cluster and the replica
	Segments  int               `json:"segments"`  // number of segments of the log
	Snapshots int               `json:"snapshots"` // usable ones
	Rounds    uint64            `json:"rounds"`    // groups of records that were flushed together
	Records   map[string]uint64 `json:"records"`   // number of records, by kind
	Snapshot  SnapshotInfo      `json:"snapshot"`  // the newest usable one
	First     uint64            `json:"first"`     // first entry in the log, whether or not a snapshot has it
	Last      uint64            `json:"last"`      // last entry
	LastTerm  uint64            `json:"last_term"` // its term
	Clean     bool              `json:"clean"`     // the log was closed
	Problems  int               `json:"problems"`  // number of files with a problem
}

// Verify reads all files of a log that is not in use, reports on each, and changes nothing. It
// continues after problems and counts them in the summary. An error means that it could not
// read the log, for example a *LockedError if a replica is running.
func Verify(dir string, report func(Finding)) (Summary, error) {
	return VerifyDisk(dirDisk{dir}, report)
}

// VerifyDisk is Verify for any disk.
func VerifyDisk(disk Disk, report func(Finding)) (Summary, error) {
	lock, err := disk.Lock(true)
	if err != nil {
		return Summary{}, fmt.Errorf("verify log: %w", err)
	}
	v := &verifier{disk: disk, report: report, sum: Summary{Records: map[string]uint64{}}}
	if err := errors.Join(v.run(), lock.Close()); err != nil {
		return v.sum, fmt.Errorf("verify log: %w", err)
	}
	return v.sum, nil
}

type verifier struct {
	disk   Disk
	report func(Finding)
	sum    Summary
	log    *logReader // starts again after a problem
	broken bool       // a segment has a problem: the contents of the log are unknown
}

func (v *verifier) run() error {
	files, err := list(v.disk)
	if err != nil {
		return err
	}
	v.identity(files.identity)
	v.log = &logReader{}
	for i, number := range files.segments {
		name := segmentName(number)
		if i > 0 && number != files.segments[i-1]+1 {
			v.tell(Finding{File: segmentName(files.segments[i-1] + 1), Kind: "segment", Problem: fmt.Sprintf("it is missing, with all up to %s", name)})
			v.broken, v.log = true, &logReader{}
		}
		v.segment(name, number, i == len(files.segments)-1)
	}
	if len(files.segments) == 0 {
		v.tell(Finding{File: identityName, Kind: "identity", Problem: "the log has no segment"})
	}
	for _, name := range files.others {
		v.other(name)
	}
	v.conclude(files)
	v.rest(files)
	return nil
}

// tell counts a finding and reports it.
func (v *verifier) tell(f Finding) {
	if f.Problem != "" {
		v.sum.Problems++
	}
	v.report(f)
}

// setProblem adds an error to a finding.
func setProblem(f *Finding, err error) {
	var bad *CorruptError
	switch {
	case err == nil:
	case errors.As(err, &bad):
		f.Problem, f.Offset = bad.What, bad.Offset
		if bad.File != f.File {
			f.Problem = bad.File + ": " + bad.What
		}
	default:
		f.Problem = err.Error()
	}
}

func (v *verifier) identity(exists bool) {
	f := Finding{File: identityName, Kind: "identity"}
	if !exists {
		f.Problem = "it is missing"
		v.tell(f)
		return
	}
	id, err := readIdentity(v.disk)
	setProblem(&f, err)
	v.sum.Identity = id
	v.tell(f)
}

func (v *verifier) segment(name string, number uint64, last bool) {
	f := Finding{File: name, Kind: "segment", Records: map[string]uint64{}}
	err := v.readSegment(&f, number, last)
	setProblem(&f, err)
	if f.Problem != "" {
		v.broken, v.log = true, &logReader{}
	}
	for kind, n := range f.Records {
		v.sum.Records[kind] += n
	}
	v.sum.Segments++
	v.sum.Rounds += f.Rounds
	v.tell(f)
}

func (v *verifier) readSegment(f *Finding, number uint64, last bool) error {
	s, file, err := readSegment(v.disk, f.File)
	if err != nil {
		return err
	}
	f.Bytes = s.length
	id := v.sum.Identity.Log
	if id == (LogID{}) {
		id = s.log // the identity is unreadable: all segments must at least have the same
		v.sum.Identity.Log = id
	}
	err = v.log.read(s, file, number, id, last)
	if err == nil && last {
		f.Torn, v.sum.Clean = v.log.torn, v.log.clean
	}
	return errors.Join(err, v.count(f, s, file), file.Close())
}

// count reads the rounds of a segment again and counts their records.
func (v *verifier) count(f *Finding, s *segment, file io.ReaderAt) error {
	var d damage
	for round := range s.scan(file, 0, &d) {
		f.Rounds++
		for i := range round.records {
			r := &round.records[i]
			f.Records[r.Kind.String()]++
			if r.Kind != Entry {
				continue
			}
			if f.First == 0 || r.Index < f.First {
				f.First = r.Index
			}
			f.Last, f.Term = max(f.Last, r.Index), max(f.Term, r.Term)
		}
	}
	return d.read
}

// other verifies a snapshot, or reports an unknown file.
func (v *verifier) other(name string) {
	index, term, ok := parseSnapshotName(name)
	if !ok {
		if name != lockName {
			v.tell(Finding{File: name, Kind: "other"})
		}
		return
	}
	f := Finding{File: name, Kind: "snapshot", Last: index, Term: term}
	info, err := v.snapshot(name, SnapshotInfo{Index: index, Term: term})
	setProblem(&f, err)
	f.Bytes = info.Bytes
	if f.Problem == "" {
		v.sum.Snapshots++
		v.sum.Snapshot = info // names are sorted by index
	}
	v.tell(f)
}

func (v *verifier) snapshot(name string, want SnapshotInfo) (SnapshotInfo, error) {
	r, err := openSnapshot(v.disk, name, v.sum.Identity.Cluster, want)
	if err != nil {
		return SnapshotInfo{}, err
	}
	return r.info, errors.Join(r.drain(), r.Close())
}

// conclude checks that log and snapshots fit together.
func (v *verifier) conclude(files listing) {
	if v.broken || len(files.segments) == 0 {
		return
	}
	t, base := &v.log.track, v.sum.Snapshot
	if !t.reaches(base.Index) {
		v.tell(Finding{File: segmentName(files.segments[0]), Kind: "segment", Problem: fmt.Sprintf("the log begins with entry %d, the newest usable snapshot ends at %d", t.first, base.Index)})
	}
	if t.last >= t.first {
		v.sum.First, v.sum.Last = t.first, t.last
		v.sum.LastTerm, _ = t.term(t.last)
	}
}

// rest reports files without contents.
func (v *verifier) rest(files listing) {
	for _, name := range append(append(files.spares, files.parts...), files.temps...) {
		f := Finding{File: name, Kind: "other"}
		switch {
		case strings.HasPrefix(name, sparePrefix):
			f.Kind = "spare"
		case strings.HasSuffix(name, partSuffix):
			f.Kind = "part"
		}
		var err error
		f.Bytes, err = size(v.disk, name)
		setProblem(&f, err)
		v.tell(f)
	}
}
