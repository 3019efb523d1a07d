// A shared object, but not a plugin.
extern "C" int SomethingElse();
int SomethingElse() { return 0; }
