// Package restore has the options and the result of a restore, and what all engines share: an
// [Account] collects the plan and the failures, [Journal] the steps that an interrupted restore
// has finished. The packages below it, one for each engine, read an archive into a server.
//
//	postgres.Run(ctx, options, reader) (*Result, error)
package restore

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/backup/bulk"
)

// Options say what to restore and how. The zero value, with a DSN, restores a backup of one
// database into the database of the DSN, which must be empty.
type Options struct {
	// DSN is the connection string of the server. Its database is the target. With Create, that
	// database is created, unless every server has it: then it is only the database to connect
	// to first, as for a cluster. Required.
	DSN string

	// Database is the database of the backup to restore. Default: the only one, or all of a
	// cluster.
	Database string

	// Target is the name of the database to restore into, or with Create to create. Default:
	// that of the DSN; with Create and none in the DSN, or for a cluster, the name in the
	// backup.
	Target string

	// Create creates the database first. Default: false.
	Create bool

	// Clean drops what is to be restored first: the database with Create, otherwise the objects
	// of the backup one by one. Default: false, a target that is not empty is refused.
	Clean bool

	// IfExists ignores that an object that Clean drops does not exist. Default: false.
	IfExists bool

	// Filter selects the schemas and tables to restore. Default: all.
	Filter bulk.Filter

	// NoOwner makes the role that restores the owner of all objects; with MySQL and MariaDB it
	// removes DEFINER clauses, so that the account that restores is the definer. Default:
	// false.
	NoOwner bool

	// NoPrivileges leaves out grants. Default: false.
	NoPrivileges bool

	// SchemaOnly and DataOnly restore only definitions or only rows. With DataOnly, triggers
	// and foreign keys of the target are disabled if the role may do that, except triggers that
	// are set to fire always. Default: both.
	SchemaOnly, DataOnly bool

	// NoGlobals leaves out the roles and tablespaces of a cluster. Default: false.
	NoGlobals bool

	// DryRun connects and plans, but changes nothing: the plan is in the Result. Default:
	// false.
	DryRun bool

	// Resume continues an interrupted restore: steps that it finished are recorded in the
	// target, and are skipped. Default: false.
	Resume bool

	// Force restores into a server that is older than the source. Default: false.
	Force bool

	// Stop stops at the first object that fails. Default: false, continue with all objects that
	// do not depend on it, and report at the end what failed and what is left to do.
	Stop bool

	// Sandbox runs no code of the archive with superuser rights, in a throwaway PostgreSQL
	// server: roles are created without any rights, tablespaces and settings of roles are left
	// out, and the superuser of the DSN is renamed. Default: false.
	Sandbox bool

	// NoCheck starts without first verifying everything but rows. Default: false.
	NoCheck bool

	// NoAnalyze leaves planner statistics to the server's autovacuum or the like. Default:
	// false.
	NoAnalyze bool

	// NoLocal loads rows by INSERT even if the server allows LOAD DATA LOCAL. MySQL and MariaDB
	// only. Default: false.
	NoLocal bool

	// Verify says how to compare the result with the manifest. Default: VerifyCounts.
	Verify Verify

	// Profile says how much of the machine to use. Default: bulk.Recommend.
	Profile bulk.Profile

	// Jobs is how many jobs run concurrently, each over a connection of its own. Default: that
	// of Profile.
	Jobs int

	// Adapt lets the number of jobs follow the throughput of server and storage while rows are
	// loaded, beginning with Jobs. Default: the number is fixed.
	Adapt bulk.Adapt

	// MaintenanceBytes is the memory of each index build, in bytes. Default: that of Profile.
	MaintenanceBytes int64

	// IndexTimeout limits the time for one index or constraint: one that takes longer counts as
	// failed. PostgreSQL only. Default: 0, no limit.
	IndexTimeout time.Duration

	// IndexWorkers is the number of parallel workers of each index build
	// (max_parallel_maintenance_workers). PostgreSQL 11 and later. Default: nil, the server's
	// setting for a single build, and 0 while several run concurrently.
	IndexWorkers *int

	// Tuning are settings of the sessions as NAME=VALUE, of those that [TuningNames] lists.
	// PostgreSQL only. Default: the server's.
	Tuning []string

	// Progress counts what is done. Default: nil, progress is not counted.
	Progress *bulk.Progress
}

// Verify is a way to compare a restored database with its manifest.
type Verify string

// The ways; each includes those before it.
const (
	// VerifyNone compares nothing.
	VerifyNone Verify = "none"
	// VerifyCounts compares the numbers of rows that the server reported, at no cost.
	VerifyCounts Verify = "counts"
	// VerifyRows reads the tables and compares the numbers of rows, and their checksums if the
	// backup has them.
	VerifyRows Verify = "rows"
)

// WithDefaults returns the options with defaults filled in.
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

// Empty returns an error for a target with a number of objects, unless that is "0"; one is the
// name of one of them.
func (o Options) Empty(objects, one string) error {
	what := objects + " objects, such as " + one
	if objects == "1" {
		what = "1 object, " + one
	}
	switch {
	case objects == "0":
		return nil
	case o.Resume:
		return Refuse("nothing to continue: the target holds %s, and no record of an interrupted restore, which may have been completed", what)
	}
	return Refuse("the target is not empty: it holds %s (--clean drops what the backup contains, --create --target creates another database)", what)
}

// Validate returns an error that names the invalid flag.
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
		return errors.New("--if-exists needs --clean")
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

// An ObjectError is a failure to restore one object. Err has the server's message.
type ObjectError struct {
	Database string
	Object   string // such as "TABLE public.orders"

	// Statement is the statement that failed, shortened if it is long.
	Statement string

	// Rest is what is left to do for the object, as SQL; empty if only Err can tell.
	Rest string

	// Chunk holds the rows that could not be loaded, if that is what failed.
	Chunk string

	Err error
}

// Error returns the object, the server's message and the statement without secrets.
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
	Object   string `json:"object"`          // what the step creates or changes
	Bytes    int64  `json:"bytes,omitempty"` // plain
	Rows     int64  `json:"rows,omitempty"`  // number of rows

	// Done says that an earlier run has finished the step.
	Done bool `json:"done,omitempty"`
}

// Result is the result of a restore.
type Result struct {
	// Plan is what was done, or with DryRun would be.
	Plan []Step

	// Ended says that everything was tried: all that could be restored is in the target, and
	// Failed is the rest.
	Ended bool

	// Failed are the objects that failed, in the order of their errors.
	Failed []*ObjectError

	// Broken are objects that were unusable at the source, such as views of missing tables.
	// They are not created, which is no failure.
	Broken []*ObjectError

	// Resumed is how many steps an earlier run had finished.
	Resumed int

	// Warnings are things that are worth knowing but no failures.
	Warnings []string

	Tables int
	Rows   int64
	Bytes  int64 // plain

	// Workers are the metrics of the workers that loaded rows, for each database.
	Workers []bulk.WorkerPoolStats

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
