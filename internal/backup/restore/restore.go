// Package restore holds the options and the result of a restore, and what all engines
// share: an [Account] keeps the plan and the failures, [Books] the steps that an
// interrupted restore had finished. The packages below it, one for each engine, read an
// archive into a server.
//
//	postgres.Run(ctx, options, reader) (*Result, error)
package restore

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// Options is what is asked for. Its zero value, with a DSN, restores a backup of
// one database into the database of the DSN, which must be empty.
type Options struct {
	// DSN says where the server is and who to be there. Its database is the
	// target; with Create it is made, unless it is one that every server has, which
	// then is the one to connect to first, as for a cluster. Required.
	DSN string

	// Database says which database of the backup is restored. Default: the only
	// one, or all of a cluster.
	Database string

	// Target is the name of the database to restore into, or with Create to make.
	// Default: that of the DSN; with Create and none in the DSN, or of a cluster, the
	// name in the backup.
	Target string

	// Create makes the database first. Default: false.
	Create bool

	// Clean drops what is to be restored before: the database with Create, else
	// the objects of the backup one by one. Default: false, a target that is not
	// empty is refused.
	Clean bool

	// IfExists makes it no error that what Clean drops does not exist. Default: false.
	IfExists bool

	// Filter says which schemas and tables are restored, of those in the backup.
	// Default: all.
	Filter bulk.Filter

	// NoOwner leaves objects to the role that restores; of MySQL and MariaDB it
	// leaves DEFINER clauses out, so that this is the account that restores.
	// Default: false.
	NoOwner bool

	// NoPrivileges leaves out grants. Default: false.
	NoPrivileges bool

	// SchemaOnly and DataOnly restore only definitions or only rows. With DataOnly,
	// triggers and foreign keys of the target are put off where the role may do
	// that, but for triggers that are set to fire always. Default: both.
	SchemaOnly, DataOnly bool

	// NoGlobals leaves roles and tablespaces of a cluster out. Default: false.
	NoGlobals bool

	// DryRun connects, plans and changes nothing: the plan is in the Result.
	// Default: false.
	DryRun bool

	// Resume continues a restore that was interrupted: what it finished is in
	// the target's own books, and not done again. Default: false.
	Resume bool

	// Force restores into a server that is older than the source. Default: false.
	Force bool

	// Stop ends at the first error in an object. Default: false, go on with all that
	// does not need it, and report what failed at the end, with what is left to do.
	Stop bool

	// Sandbox runs nothing of the archive with a superuser's rights, in a throwaway
	// server, of PostgreSQL: its roles are made as ones that may nothing, tablespaces
	// and settings of roles are left out, and the superuser that the DSN names gets
	// another name. Default: false.
	Sandbox bool

	// NoCheck begins without having read and compared all that is not rows first.
	// Default: false.
	NoCheck bool

	// NoAnalyze leaves statistics for the planner to the server's own
	// background work. Default: false.
	NoAnalyze bool

	// NoLocal loads rows by INSERT even where the server would take LOAD DATA
	// LOCAL, of MySQL and MariaDB. Default: false.
	NoLocal bool

	// Verify says how the result is compared with the manifest. Default: VerifyCounts.
	Verify Verify

	// Profile says how much of the machine to use. Default: bulk.Recommend.
	Profile bulk.Profile

	// Jobs is how many things are done side by side, each over a connection of
	// its own. Default: that of Profile.
	Jobs int

	// Adapt has the number of Jobs follow what the server and the storage give while
	// rows are loaded, from Jobs on. Default: the number does not change.
	Adapt bulk.Adapt

	// MaintenanceBytes is the memory of each index build. Default: that of Profile.
	MaintenanceBytes int64

	// IndexTimeout bounds how long the server may take for one index or constraint, of
	// PostgreSQL: one that takes longer fails, as an object that fails. Default: 0, no
	// bound.
	IndexTimeout time.Duration

	// IndexWorkers are the parallel workers of each index build, of PostgreSQL 11 on
	// (max_parallel_maintenance_workers). Default: nil, the server's setting for a
	// build that is alone, and none where several run side by side.
	IndexWorkers *int

	// Tuning are settings of the sessions, of PostgreSQL, as NAME=VALUE: those that
	// [TuningNames] lists. Default: the server's.
	Tuning []string

	// Progress counts what is done. Default: nil, nobody looks.
	Progress *bulk.Progress
}

// Verify is a way to compare a restored database with its manifest.
type Verify string

// The ways, each with those before it.
const (
	// VerifyNone compares nothing.
	VerifyNone Verify = "none"
	// VerifyCounts compares the numbers of rows that the server took, which cost
	// nothing.
	VerifyCounts Verify = "counts"
	// VerifyRows reads the tables again and compares the number of rows, and
	// their checksums if the backup has them.
	VerifyRows Verify = "rows"
)

// WithDefaults fills in what is left open.
func (o Options) WithDefaults() Options {
	if o.Profile.Jobs == 0 {
		o.Profile = bulk.Recommend(bulk.ThisMachine())
	}
	if o.Jobs == 0 {
		o.Jobs = o.Profile.Jobs
	}
	o.Jobs = o.Adapt.Start(o.Jobs)
	if o.MaintenanceBytes == 0 {
		o.MaintenanceBytes = o.Profile.MaintenanceBytes(bulk.ThisMachine(), max(o.Jobs, o.Adapt.Max))
	}
	if o.Verify == "" {
		o.Verify = VerifyCounts
	}
	return o
}

// Empty refuses a target that holds a number of objects, unless that is "0"; one is the name
// of one of them.
func (o Options) Empty(objects, one string) error {
	switch {
	case objects == "0":
		return nil
	case o.Resume:
		return fmt.Errorf("nothing to continue: the target holds %s objects, such as %s, and no books of an interrupted restore; it may have been finished", objects, one)
	}
	return fmt.Errorf("the target is not empty: it holds %s objects, such as %s (--clean drops what the backup brings, --create --target makes another database)", objects, one)
}

// Validate names the flag that is wrong.
func (o Options) Validate() error {
	switch {
	case o.DSN == "":
		return errors.New("no DSN: into which server?")
	case o.Jobs < 1:
		return fmt.Errorf("--jobs %d: at least 1 is needed", o.Jobs)
	case o.Adapt.Validate() != nil:
		return o.Adapt.Validate()
	case o.SchemaOnly && o.DataOnly:
		return errors.New("--schema-only and --data-only leave nothing to restore")
	case o.Clean && o.DataOnly:
		return errors.New("--clean drops definitions, which --data-only does not bring back")
	case o.IfExists && !o.Clean:
		return errors.New("--if-exists is about what --clean drops")
	case o.Create && o.DataOnly:
		return errors.New("--create makes a database without tables, and --data-only needs them")
	case o.Clean && o.Resume:
		return errors.New("--clean would drop what --resume continues")
	case o.MaintenanceBytes < 1<<20:
		return fmt.Errorf("memory for index builds %d: at least 1 MiB is needed", o.MaintenanceBytes)
	}
	if o.IndexTimeout < 0 {
		return fmt.Errorf("--index-timeout %v: a time of more than 0 is needed", o.IndexTimeout)
	}
	if o.IndexWorkers != nil && (*o.IndexWorkers < 0 || *o.IndexWorkers > maxIndexWorkers) {
		return fmt.Errorf("--index-workers %d: want 0 to %d", *o.IndexWorkers, maxIndexWorkers)
	}
	if err := validTuning(o.Tuning); err != nil {
		return err
	}
	switch o.Verify {
	case VerifyNone, VerifyCounts, VerifyRows:
	default:
		return fmt.Errorf("--verify %q: want none, counts or rows", o.Verify)
	}
	_, err := o.Filter.Compile()
	return err
}

// An ObjectError is a failure about one object. The server's message is in Err.
type ObjectError struct {
	Database string
	Object   string // as "TABLE public.orders"

	// Statement is what failed, cut if it is long.
	Statement string

	// Rest is what is left to do for the object, as SQL; empty where nothing but a
	// look at Err helps.
	Rest string

	// Chunk holds the rows that are left to load, where that is what failed.
	Chunk string

	Err error
}

// Error names the object, the server's message and the statement, whose secrets it hides.
func (e *ObjectError) Error() string {
	s := e.Object + ": " + serverText(e.Err, e.Statement)
	if e.Statement != "" {
		s += "; the statement was: " + HideSecrets(e.Statement)
	}
	return s
}

// Unwrap returns the cause.
func (e *ObjectError) Unwrap() error { return e.Err }

// A Step is a line of a plan.
type Step struct {
	Database string `json:"database"`        // the database at the target
	Phase    string `json:"phase"`           // such as prepare or globals
	Object   string `json:"object"`          // what the step makes or changes
	Bytes    int64  `json:"bytes,omitempty"` // plain
	Rows     int64  `json:"rows,omitempty"`  // number of rows

	// Done says that an earlier run has finished it.
	Done bool `json:"done,omitempty"`
}

// Result is what a restore reports.
type Result struct {
	// Plan is what was done, or would be with DryRun.
	Plan []Step

	// Ended says that everything was tried: all that could be restored is there, and
	// Failed is what could not.
	Ended bool

	// Failed are the errors about objects, in the order in which they came.
	Failed []*ObjectError

	// Broken are objects that were of no use at the source, such as views of tables
	// that are gone. They are not made, and that is no failure.
	Broken []*ObjectError

	// Resumed is how many steps an earlier run had finished.
	Resumed int

	// Warnings are things that are worth knowing and no failure.
	Warnings []string

	Tables int
	Rows   int64
	Bytes  int64 // plain

	// Workers are the metrics of those that loaded rows, of each database.
	Workers []bulk.CrewStats

	// Phases are the times of the phases, in their order.
	Phases []Phase

	Elapsed time.Duration
}

// AddPhase adds to the time of a phase.
func (r *Result) AddPhase(name string, d time.Duration) {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			r.Phases[i].Elapsed += d
			return
		}
	}
	r.Phases = append(r.Phases, Phase{Name: name, Elapsed: d})
}

// Phase is how long one phase took, over all databases.
type Phase struct {
	Name    string        `json:"name"`       // such as prepare, or data and indexes
	Elapsed time.Duration `json:"elapsed_ns"` // how long it took
}
