// The rules of the house, as tests that read the source files: the import map
// of DESIGN.md and what no package below cmd may do.
package headroom_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/headroom-go/headroom/"

// imports is the import map: each package with the ones of ours that it may use.
var imports = map[string][]string{
	"trace":                {"internal/size"},
	"internal/invariant":   {},
	"internal/size":        {},
	"internal/atomicfile":  {},
	"internal/safetensors": {"internal/atomicfile"},
	"internal/library":     {},
	"device":               {"internal/cuda", "internal/library", "internal/invariant", "internal/size"},
	"internal/cuda":        {"internal/library"},
	"internal/mpi":         {"internal/library"},
	"internal/placement":   {},
	"internal/remat":       {},
	"watch":                {"internal/size"},
	"alloc":                {"device", "trace", "internal/placement", "internal/invariant", "internal/size"},
	"internal/kernel":      {"device", "internal/invariant"},
	"internal/spill":       {"device", "tensor", "internal/size"},
	"share":                {"alloc", "device", "internal/size"},
	"inspect":              {"trace", "alloc", "device", "internal/size"},
	"internal/web":         {"inspect", "trace", "alloc", "internal/size"},
	"live":                 {"internal/web", "alloc", "trace"},
	"tensor":               {"alloc", "device", "trace", "internal/kernel", "internal/invariant"},
	"nn":                   {"dist", "tensor", "internal/safetensors"},
	"data":                 {"internal/safetensors"},
	"dist":                 {"device", "internal/cuda", "internal/kernel", "internal/mpi", "internal/size"},
	"profile":              {"tensor", "alloc", "device", "trace", "internal/size"},
	"train":                {"dist", "nn", "tensor", "data", "profile", "inspect", "alloc", "device", "trace", "internal/atomicfile", "internal/safetensors"},
	"generate":             {"nn", "tensor", "alloc", "device", "trace"},
	"plan":                 {"dist", "train", "tensor", "alloc", "device", "internal/remat", "internal/atomicfile", "internal/size"},
	"cmd/headroom":         {"*"},
	"device/devicetest":    {"device"},
	"dist/disttest":        {"device", "dist", "internal/mpi"},
	"internal/story":       {},
	"internal/web/webtest": {},
	"internal/golden":      {"internal/safetensors"},
	"internal/kernel/gen":  {},
}

// unsafeAllowed are the packages that may import unsafe.
var unsafeAllowed = []string{"device", "internal/kernel", "internal/cuda", "internal/mpi"}

// source is one parsed file that is part of the program.
type source struct {
	pkg  string // the folder
	path string
	file *ast.File
}

// sources parses all files but tests, generators and other modules.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || otherModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		out = append(out, source{filepath.ToSlash(filepath.Dir(path)), path, f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found %d files: the test reads the wrong folder", len(out))
	}
	return fset, out
}

func otherModule(dir string) bool {
	m, _ := filepath.Glob(filepath.Join(dir, "go.mod"))
	return len(m) > 0
}

func TestImportMap(t *testing.T) {
	_, files := sources(t)
	for _, s := range files {
		allowed, known := imports[s.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the import map: add it here and to DESIGN.md", s.path, s.pkg)
		}
		for _, spec := range s.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if ours, ok := strings.CutPrefix(path, module); ok && !slices.Contains(allowed, ours) && !slices.Contains(allowed, "*") {
				t.Errorf("%s: %s may not import %s", s.path, s.pkg, ours)
			}
			if path == "unsafe" && !slices.Contains(unsafeAllowed, s.pkg) {
				t.Errorf("%s: %s may not import unsafe", s.path, s.pkg)
			}
			if strings.Contains(path, "purego") && s.pkg != "internal/library" {
				t.Errorf("%s: only internal/library may import purego", s.path)
			}
		}
	}
}

func TestEveryPackageHasItsSentence(t *testing.T) {
	_, files := sources(t)
	documented := map[string]bool{}
	for _, s := range files {
		name := s.file.Name.Name
		start := fmt.Sprintf("Package %s ", name)
		if name == "main" {
			start = "Command "
		}
		doc := s.file.Doc.Text()
		documented[s.pkg] = documented[s.pkg] || strings.HasPrefix(doc, start)
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no sentence that says what it is", pkg)
		}
	}
}

// TestQuietPackages keeps printing, logging, the environment, init and mutable
// package-level state out of everything but commands.
func TestQuietPackages(t *testing.T) {
	banned := []string{"fmt.Print", "fmt.Println", "fmt.Printf", "os.Getenv", "os.LookupEnv", "os.Environ", "os.Stdout", "os.Stderr", "os.Exit"}
	fset, files := sources(t)
	for _, s := range files {
		if strings.HasPrefix(s.pkg, "cmd/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			at := func(format string, args ...any) {
				t.Errorf("%s: %s", fset.Position(n.Pos()), fmt.Sprintf(format, args...))
			}
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(banned, x.Name+"."+n.Sel.Name) {
					at("%s.%s below cmd", x.Name, n.Sel.Name)
				}
			case *ast.ImportSpec:
				if n.Path.Value == `"log"` || n.Path.Value == `"log/slog"` {
					at("%s below cmd", n.Path.Value)
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					at("func init")
				}
			case *ast.AssignStmt:
				for _, to := range n.Lhs {
					if v := packageVar(s.file, to); v != "" {
						at("package-level variable %s is changed", v)
					}
				}
			}
			return true
		})
	}
}

// packageVar is the name of the package-level variable of f that an assignment
// to e would change, or empty.
func packageVar(f *ast.File, e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.Ident:
			if o := f.Scope.Lookup(x.Name); o != nil && o.Kind == ast.Var && x.Obj == o {
				return x.Name
			}
			return ""
		default:
			return ""
		}
	}
}
