package restore

import (
	"crypto/sha256"
	"fmt"
	"slices"
)

// Books are the steps that an earlier run of a restore has finished. They are in the
// target itself while a restore runs: each step notes itself there, by the engine's own
// means. Books are written before the jobs start and only read afterwards. Nil books
// have no steps.
type Books struct{ done map[string]bool }

// StepRestored is the last step: what is left is to close the books.
const StepRestored = "restored"

// Identity is the step that says whose books these are: of a database of a backup, and of
// the part of it that the options mean.
func (o *Options) Identity(backup, database string) string {
	is := "backup " + backup + " database " + database
	f := o.Filter
	for _, list := range []*[]string{&f.Schemas, &f.ExcludeSchemas, &f.Tables, &f.ExcludeTables, &f.ExcludeTableData} {
		*list = slices.Sorted(slices.Values(*list))
	}
	if !f.Empty() || o.SchemaOnly || o.DataOnly {
		is += fmt.Sprintf(" part %x", sha256.Sum256(fmt.Appendf(nil, "%q %t %t", f, o.SchemaOnly, o.DataOnly)))
	}
	return is
}

// Add notes a step that the target has.
func (b *Books) Add(step string) {
	if b.done == nil {
		b.done = map[string]bool{}
	}
	b.done[step] = true
}

// Forget takes back a step that has to be done again.
func (b *Books) Forget(step string) { delete(b.done, step) }

// Has reports whether a step is finished.
func (b *Books) Has(step string) bool { return b != nil && b.done[step] }

// Begun reports whether there is any step: the target is one whose restore was
// interrupted.
func (b *Books) Begun() bool { return b != nil && len(b.done) > 0 }

// Check refuses books that were found in place, such as "schema weir_restore", unless
// they are to be continued and are those of what the options mean of this database of this
// backup.
func (b *Books) Check(place, backup, database string, o *Options) error {
	if !o.Resume && !o.DryRun {
		return fmt.Errorf("an interrupted restore is in the database (%s): --resume continues it; or drop the database and begin anew", place)
	}
	if b.Begun() && !b.Has(o.Identity(backup, database)) {
		return fmt.Errorf("the interrupted restore in the database is not one of database %s of backup %s, or it is one of another part of that: --resume takes the same backup and, such as --table or --data-only, the same flags", database, backup)
	}
	return nil
}
