package postgres

import (
	"context"
	"fmt"
	"slices"
)

// references returns which tables must be loaded before which, if foreign keys of the target
// are active while rows are loaded. Of tables that refer to each other in a circle, one comes
// first, and the server may reject its rows. Keys that the restore itself has created matter
// only for rows that are loaded a second time.
func (d *database) references(ctx context.Context) (map[*target][]*target, error) {
	if !d.guarded && !slices.ContainsFunc(d.tables, func(t *target) bool { return t.second }) {
		return nil, nil
	}
	refers := map[*target][]*target{}
	err := d.main.Query(ctx, `SELECT DISTINCT s.nspname, t.relname, fs.nspname, ft.relname
FROM pg_catalog.pg_constraint c
JOIN pg_catalog.pg_class t ON t.oid = c.conrelid JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
JOIN pg_catalog.pg_class ft ON ft.oid = c.confrelid JOIN pg_catalog.pg_namespace fs ON fs.oid = ft.relnamespace
WHERE c.contype = 'f' AND c.conrelid <> c.confrelid ORDER BY 1, 2, 3, 4`, func(row []string) error {
		t, to := d.byTable[[2]string{row[0], row[1]}], d.byTable[[2]string{row[2], row[3]}]
		if t != nil && to != nil && (d.guarded || t.second && to.second) {
			refers[t] = append(refers[t], to)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list foreign keys: %w", err)
	}
	before := map[*target][]*target{}
	place := map[*target]int{} // in the order; negative while those before it are placed
	var visit func(t *target)
	visit = func(t *target) {
		place[t] = -1
		for _, to := range refers[t] {
			if place[to] == 0 {
				visit(to)
			}
			if place[to] < 0 {
				d.Warn("tables %s and %s refer to each other, and foreign keys are in force: rows of one of them may be refused", t.name(), to.name())
				continue
			}
			before[t] = append(before[t], to)
		}
		place[t] = 1 + len(place)
	}
	for _, t := range d.tables {
		if place[t] == 0 {
			visit(t)
		}
	}
	return before, nil
}

// partitions returns the tables with rows by the partitioned tables that they belong to, at any
// depth. A trigger or foreign key of a partitioned table also applies to its partitions, and
// has to wait for their rows.
func partitions(ctx context.Context, d *database) (map[[2]string][]*target, error) {
	if d.opts.DataOnly || d.version < 100000 {
		return nil, nil
	}
	parent := map[[2]string][2]string{}
	err := d.main.Query(ctx, `SELECT s.nspname, c.relname, ps.nspname, p.relname
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace ps ON ps.oid = p.relnamespace
WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f')`, func(row []string) error {
		parent[[2]string{row[0], row[1]}] = [2]string{row[2], row[3]}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	parts := map[[2]string][]*target{}
	for _, t := range d.tables {
		for p, ok := parent[[2]string{t.Schema, t.Name}]; ok; p, ok = parent[p] {
			parts[p] = append(parts[p], t)
		}
	}
	return parts, nil
}
